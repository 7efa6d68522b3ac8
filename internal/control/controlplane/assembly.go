package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/activities/control"
	"berth/activities/wait"
	"berth/api"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/autoscale"
	"berth/internal/control/blob"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/agentbin"
	"berth/internal/control/digest"
	"berth/internal/control/dispatch"
	"berth/internal/control/floors"
	"berth/internal/control/notify"
	"berth/internal/control/scheduler"
	"berth/internal/control/watermark"
	"berth/internal/control/webhook"
	"berth/internal/lib/background"
	"berth/internal/lib/connlimit"
	"berth/internal/lib/overload"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/sealer"
	"berth/spec"
	"berth/web"
	"berth/wire"
	"berth/workers"
)

// assembly creates the parts of a control plane and holds the resources that
// parts share.
//
// Parts that act start once the cluster is not quarantined; see adoption.
//
// The parts stop in three stages, one after the other: front, the API, which
// takes calls; middle, the workers, the leader and the senders, which act on
// calls; last, the parts that the others report to.
type assembly struct {
	*ControlPlane
	db       *db.DB
	temporal client.Client

	registry   *prometheus.Registry
	dispatcher *dispatch.Dispatcher
	volumes    admission.Volumes
	images     []string // see admission.ParseImages
	signed     []spec.SignatureRule
	admission  *admission.Controller
	shared     *background.Group // of readings that calls of admission share
	traced     *tracedStore
	blobs      *blob.Store       // nil: none configured; a leader may do without
	marks      *watermark.Keeper // nil without blobs
	keys       *sealer.Keys      // nil: no secrets, no webhooks and no launches
	mailer     *notify.Mailer    // nil: no mail
	accounts   cloud.Accounts
	agents     *agentbin.Binaries // nil: none are served
	clouds     *autoscale.Metrics
	sweeps     *prometheus.CounterVec
	adoption   *adoption

	front, middle, last []part
}

// close releases the resources of the parts. Call it after the parts have
// stopped, also after assemble failed.
func (a *assembly) close() {
	if a.shared != nil {
		a.shared.Close()
	}
	if a.blobs != nil {
		_ = a.blobs.Close()
	}
	_ = a.agents.Close()
}

// assemble creates the parts of each role. Nothing runs yet, but the API
// listens.
func (a *assembly) assemble(ctx context.Context) error {
	var err error
	if a.volumes, err = admission.ParseVolumes(a.cfg.FileInputs); err != nil {
		return err
	}
	if a.images, err = admission.ParseImages(a.cfg.Images); err != nil {
		return err
	}
	if a.signed, err = admission.ReadSignatureRules(a.cfg.ImageSignatures); err != nil {
		return err
	}
	if err := a.readUsers(ctx); err != nil {
		return err
	}
	a.shared = background.New()
	a.admission = admission.New(a.db, a.shared, admission.Rules{
		Volumes: a.volumes, Images: a.images, Signed: a.signed, Users: a.cfg.ContainerUser,
	})
	a.traced = newTracedStore(a.db, a.opts.Traces, a.log)
	if err := a.openBlobs(ctx); err != nil {
		return err
	}
	a.newRegistry()
	a.adoption = newAdoption(a.db, a.log)
	if a.cfg.SecretKeyFile != "" {
		if a.keys, err = sealer.Load(a.cfg.SecretKeyFile); err != nil {
			return err
		}
	}
	if a.mailer, err = a.cfg.Mail.Open(a.cfg.AllowPlaintext); err != nil {
		return err
	}
	if err := a.openClouds(); err != nil {
		return err
	}
	if a.cfg.Plays(RoleAPI) {
		if err := a.addAPI(ctx); err != nil {
			return err
		}
	}
	if a.cfg.Plays(RoleWorker) {
		a.addWorkers()
	}
	// The scheduler renews the beacon itself, also as a standby.
	if a.cfg.Plays(RoleLeader) {
		a.middle = append(a.middle, a.newScheduler().Run)
		a.addSweeper()
		a.addMoney()
	} else if a.cfg.Plays(RoleAPI) {
		a.middle = append(a.middle, a.newBeacon(a.db).run)
	}
	if a.cfg.Plays(RoleDispatch) {
		if err := a.addDispatch(); err != nil {
			return err
		}
	}
	// Each process starts and pokes the workflows of the launches that its own API or scaler has changed: the
	// hints of other processes are theirs.
	if a.cfg.Plays(RoleDispatch) || a.cfg.Plays(RoleAPI) || a.cfg.Plays(RoleLeader) {
		a.addMachines()
	}
	if a.cfg.Pprof != "" {
		a.middle = append(a.middle, a.profile)
	}
	for i, p := range a.middle {
		a.middle[i] = a.adoption.after(p)
	}
	// The dispatcher and the hub serve the other parts, and traces may come from all of them.
	a.last = []part{a.adoption.after(a.dispatcher.Run), a.db.Hub().Run, a.adoption.watch}
	if a.opts.Traces != nil {
		a.last = append(a.last, a.traced.run)
	}
	return nil
}

// newRegistry creates the metrics and the dispatcher, whose limits are among
// them.
func (a *assembly) newRegistry() {
	a.registry = prometheus.NewRegistry()
	a.registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.dispatcher = dispatch.New(a.temporal, a.db, dispatch.Options{
		Starts:    a.cfg.Plays(RoleDispatch),
		Namespace: cmp.Or(a.cfg.TemporalNamespace, workers.DefaultNamespace), API: a.cfg.PublicURL, Logger: a.log,
	})
	a.registry.MustRegister(&limits{
		limiters: append(a.db.Limiters(), a.dispatcher.Limiter()),
		repeats:  map[string]*overload.Budget{"temporal": a.dispatcher.Repeats()},
		gate:     a.dispatcher.Gate(),
	}, a.certificate, &objectSpace{a.blobs})
	a.clouds, a.sweeps = autoscale.NewMetrics(), newSweepCounts()
	a.registry.MustRegister(a.clouds, a.sweeps)
}

// openBlobs opens the object store, if one is configured, and compares its
// watermark with the database.
func (a *assembly) openBlobs(ctx context.Context) (err error) {
	if a.cfg.BlobURL == "" {
		return nil
	}
	if a.blobs, err = blob.Open(ctx, a.cfg.BlobURL); err != nil {
		return err
	}
	if err := a.identifyStore(ctx); err != nil {
		return err
	}
	a.marks = &watermark.Keeper{DB: a.db, Store: a.blobs, Logger: a.log, Every: a.opts.WatermarkEvery}
	if !a.cfg.Plays(RoleAPI) {
		return nil
	}
	// Before the API answers machines: a machine that has been silent since a backup was
	// taken would obey the database restored from that backup.
	err = a.marks.Check(ctx)
	if errors.Is(err, db.ErrRestored) {
		return err
	}
	if err != nil && !errors.Is(err, watermark.ErrLeapt) {
		a.log.Error("object store unreachable, cannot tell yet whether the database was restored", "err", err)
	}
	return nil
}

// addAPI adds the API and, with keys, the part that seals stored secrets with
// the newest key.
func (a *assembly) addAPI(ctx context.Context) error {
	if a.keys != nil {
		a.middle = append(a.middle, a.reseal(a.db, a.keys))
		if err := a.readSecretsAs(ctx); err != nil {
			return err
		}
	}
	serve, err := a.newAPI()
	if err != nil {
		return err
	}
	a.front = append(a.front, serve)
	return nil
}

// readSecretsAs completes the configuration with the database's default of secrets_as. It warns of
// one that the operator has not chosen and that shows secrets to the users of container engines.
func (a *assembly) readSecretsAs(ctx context.Context) (err error) {
	if a.cfg.SecretsAs != "" {
		return nil
	}
	if a.cfg.SecretsAs, err = a.db.Cluster.SecretsAs(ctx); err != nil {
		return err
	}
	if a.cfg.SecretsAs != spec.SecretsFile {
		a.log.Warn("jobs without secrets_as receive secrets as variables, which container engines show and store; "+
			"set --secrets-as to file, or to this value", "secrets_as", a.cfg.SecretsAs)
	}
	return nil
}

// addWorkers adds the Temporal workers: one for control activities, one for the
// activities that wait for members.
func (a *assembly) addWorkers() {
	waiters := workers.NewWaiters(workers.WaiterDeps{
		Client: a.temporal,
		Limit:  a.dispatcher,
		Store:  members{a.db.Attempts, a.cfg.silence()},
		Hints:  a.db.Hub().EndHints(db.Anywhere),
		Around: a.opts.Waiter,
	}, wait.Options{Beat: a.opts.WaiterBeat, Peers: a.db.Attempts.NewWaiterSet(berth.NewSecret()), Logger: a.log})
	a.registry.MustRegister(&waiting{waiters.Registry()})
	activities := control.New(a.traced, a.dispatcher, a.admission)
	deps := control.MachineDeps{Launches: a.db.Launches, Machines: a.db.Machines, Accounts: a.accounts,
		Poke: a.dispatcher.Poke, Logger: a.log, Clock: a.opts.CloudClock,
		Faster: a.opts.CloudFaster, Sent: a.clouds.Sent}
	if a.keys != nil {
		deps.Sealer = a.keys
	}
	worker := workers.NewControl(a.temporal, activities, control.NewMachines(deps), a.log)
	a.middle = append(a.middle, worker.Run, waiters.Run)
}

// addResolver adds the resolution of images, if the operator has switched it on for this process.
func (a *assembly) addResolver() error {
	if !a.cfg.ResolveImages {
		return nil
	}
	network, err := publicnet.Parse(a.cfg.RegistryAllow)
	if err != nil {
		return err
	}
	a.middle = append(a.middle, digest.New(digest.Options{
		DB: a.db, Keys: a.keys, Admission: a.admission, Logger: a.log, Metrics: a.registry,
		Registries: &digest.Registries{
			Network: network, Plaintext: a.cfg.RegistryPlaintext, Certs: a.cfg.RegistryCerts,
		},
	}).Run)
	return nil
}

// addDispatch adds the preparation of Temporal's namespace, the resolution of images and the sender of
// webhooks. Webhooks are signed with secrets of their tenants, which only the
// keys can open: without keys there is no sender.
func (a *assembly) addDispatch() error {
	a.middle = append(a.middle, func(ctx context.Context) error { return a.prepareTemporal(ctx, a.temporal) })
	if err := a.addResolver(); err != nil {
		return err
	}
	if a.keys == nil {
		return nil
	}
	network, err := publicnet.Parse(a.cfg.WebhookAllow)
	if err != nil {
		return err
	}
	sender := webhook.New(webhook.Options{
		DB: a.db, Keys: a.keys, Logger: a.log, Network: network, Metrics: a.registry,
	})
	channels := notify.New(notify.Options{
		DB: a.db, Keys: a.keys, Caller: sender, Mailer: a.mailer, API: a.cfg.PublicURL, Logger: a.log,
		Metrics: a.registry,
	})
	a.middle = append(a.middle, sender.Run, channels.Run)
	return nil
}

// newScheduler returns the leader's part. Without a blob store it runs without the cleanup of
// objects and without watermarks.
func (a *assembly) newScheduler() *scheduler.Scheduler {
	demands, _ := floors.Parse(a.cfg.SecurityFloors) // Config.Validate has parsed them
	var objects scheduler.Objects
	if a.blobs != nil {
		objects = a.blobs
	}
	metrics := scheduler.NewMetrics()
	a.registry.MustRegister(metrics)
	var scaler scheduler.Scaler
	if len(a.accounts.Providers) > 0 && a.keys != nil {
		scaler = autoscale.New(autoscale.Options{DB: a.db, Accounts: a.accounts, Policy: a.cfg.Policy.placement(),
			Logger: a.log, Metrics: a.clouds, Every: a.opts.ScaleEvery})
	}
	return scheduler.New(scheduler.Options{
		DB: a.db, Poker: a.dispatcher, Workflows: a.dispatcher, Gate: a.dispatcher.Gate(), Clocks: a.dispatcher,
		Fires: a.admission, Scaler: scaler, Objects: objects, Watermarks: a.marks, Logger: a.log, Metrics: metrics,
		Floors:           demands,
		Policy:           a.cfg.Policy.placement(),
		Beacon:           a.cfg.Plays(RoleAPI),
		Silence:          a.cfg.silence(),
		Grace:            a.cfg.grace(),
		Retention:        a.cfg.Retention,
		MachineRetention: a.cfg.MachineRetention,
		OutputRetention:  a.cfg.OutputRetention,
		LogRetention:     a.cfg.LogRetention,
		ActRetention:     a.cfg.ActRetention,
		ReconcileEvery:   a.cfg.ReconcileEvery,
		Ages:             a.opts.Ages,
		Looks:            a.cfg.ChunkLooks,
	})
}

// newAPI returns the API's part. It listens before it returns, so that a taken address fails the
// start, and raises the limit of open files to the configured number of connections.
func (a *assembly) newAPI() (part, error) {
	proxies, err := publicnet.ParseNetworks(a.cfg.TrustedProxies)
	if err != nil {
		return nil, err
	}
	server, err := api.New(api.Deps{
		DB: a.db, Control: a.traced, Traces: a.opts.Traces, Poker: a.dispatcher,
		Logs:   &blob.LogReader{Store: a.blobs, DB: a.db},
		Logger: a.log, Version: a.opts.Version,
		Checks: []api.Check{
			{Name: "blob store", Run: a.checkStore},
			{Name: "temporal", Run: a.dispatcher.Check, Optional: true},
			{Name: "quarantine", Run: a.adoption.check, Optional: true, Fault: errWaits},
		},
		Rate: a.cfg.RatePerSecond, Burst: a.cfg.Burst, TrustedProxies: proxies, SubmitRate: a.cfg.SubmitRate,
		Policy: a.cfg.Policy.placement(),
		Gate:   a.dispatcher.Gate(), Temporal: a.dispatcher.Limiter(),
		Metrics: a.registry,
		Agent: api.AgentDeps{Blobs: a.blobs, Direct: a.cfg.ObjectAccess == DirectAccess,
			Chunks: a.cfg.CheckpointChunks},
		Vault: a.keys, SecretsAs: a.cfg.SecretsAs,
		Users:   a.cfg.ContainerUser,
		Volumes: a.volumes, Images: a.images, Signed: a.signed, Accounts: a.accounts, Agents: a.agents,

		Sessions: api.SessionDeps{Peer: sync.OnceValues(a.peer)},

		PlainWebhooks: a.cfg.WebhookAllow != "", Mail: a.mailer,
	})
	if err != nil {
		return nil, err
	}
	if a.cfg.Dashboard {
		if err := a.addDashboard(server, proxies); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("tcp", a.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", a.cfg.Listen, err)
	}
	// Every connection is an open file: a limit below the configured number must show at the start,
	// not as failed calls under load.
	connections, err := connlimit.OpenFiles(a.cfg.MaxConnections)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if connections < a.cfg.MaxConnections {
		a.log.Warn("open file limit below --max-connections, serving fewer connections",
			"connections", connections, "max_connections", a.cfg.MaxConnections)
	}
	a.listener = connlimit.New(listener, connlimit.Of(connections, proxies))
	return a.serve(server), nil
}

// addDashboard adds the pages to the routes of the API.
func (a *assembly) addDashboard(server *api.Server, proxies []netip.Prefix) error {
	site, err := web.New(web.Options{
		API: server, Sessions: a.db.WebSessions, Logger: a.log, Version: a.opts.Version, Proxies: proxies,
		Closing: server.Closing(),
	})
	if err != nil {
		return err
	}
	server.ServePages(site)
	return nil
}

// members implements wait.Store: the rows of members, judged by the limits of
// silence of this control plane.
type members struct {
	attempts *db.Attempts
	silence  db.Silence
}

// Members returns the rows of members, judged by these limits.
func (m members) Members(ctx context.Context, allocs []berth.AllocationID) ([]wire.MemberView, error) {
	return m.attempts.Members(ctx, m.silence, allocs)
}

// Ended calls db.Attempts.EndedMembers.
func (m members) Ended(ctx context.Context) ([]berth.AllocationID, error) {
	return m.attempts.EndedMembers(ctx)
}
