package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"berth/internal/control/controlplane"
	"berth/internal/lib/flags"
	"berth/internal/lib/tracing"
)

// settings is the control plane's configuration as typed: the configuration itself, and the
// texts from which parse derives further fields.
type settings struct {
	controlplane.Config
	roles      []string        // of Config.Roles, as typed
	logFormat  string          // text or json
	level      slog.Level      // least level that is logged
	adminToken string          // admin token chosen by the operator; "": none
	otlp       string          // endpoint, as typed
	traces     tracing.Options // from otlp and the standard variables
}

// settingsPath is the file of settings that berthd reads if it exists.
const settingsPath = "/etc/berth/berthd.yaml"

// load completes the flags of one of berthd's commands from the environment and the file of settings,
// whose keys are the flags of berthd itself. A flag takes precedence over a variable, and a variable
// over the file. An unknown key of the file is an error for every command: a misspelt setting would
// otherwise be ignored.
func load(f *pflag.FlagSet, lookup func(string) (string, bool)) error {
	known := pflag.NewFlagSet("berthd", pflag.ContinueOnError)
	(&settings{Config: controlplane.Default()}).flags(known)
	return flags.Load(f, known, lookup)
}

// flags registers all flags. s must hold the defaults, which the help text shows: they are
// defined once, in controlplane.Default.
func (s *settings) flags(f *pflag.FlagSet) {
	for _, r := range s.Roles {
		s.roles = append(s.roles, string(r))
	}
	flags.File(f, settingsPath)
	f.StringVar(&s.Listen, "listen", s.Listen, "listen address of the API; port 0 selects a free port")
	f.StringVar(&s.TLSCert, "tls-cert", s.TLSCert,
		"TLS certificate file of the API (default: plain HTTP, on loopback only)")
	f.StringVar(&s.TLSKey, "tls-key", s.TLSKey, "TLS key file of the API")
	f.BoolVar(&s.AllowPlaintext, "allow-plaintext", s.AllowPlaintext,
		"start although the API, the database or Temporal is reached beyond this machine without TLS")
	f.BoolVar(&s.Dashboard, "dashboard", s.Dashboard, "serve the dashboard at /, on the address of the API")
	f.StringVar(&s.PublicURL, "public-url", s.PublicURL,
		"address by which users reach the API, such as https://berth.example.com, for links to jobs in Temporal's UI "+
			"(default: no links)")
	f.StringVar(&s.PeerURL, "peer-url", s.PeerURL,
		"address by which other replicas reach this one, such as http://10.0.0.5:7070, for sessions of berth exec "+
			"(default: the listen address, or the address of this host on the way to the database)")
	f.StringVar(&s.DatabaseURL, "database-url", s.DatabaseURL,
		"PostgreSQL connection string, such as postgres://user@host/berth")
	f.IntVar(&s.DatabaseConns, "database-conns", s.DatabaseConns,
		"maximum number of database connections, not counting a few reserved for leases")
	flags.Temporal(f, &s.TemporalAddress, &s.TemporalNamespace)
	s.storeFlags(f)
	f.StringVar(&s.SecretKeyFile, "secret-key-file", s.SecretKeyFile,
		"file with one key of 64 hexadecimal digits a line: the first seals secrets, every key opens them "+
			"(default: secrets are refused)")
	tokenFileFlag(f, &s.AdminTokenFile)
	s.containerFlags(f)
	s.notifyFlags(f)
	f.StringVar(&s.CloudFile, "cloud", s.CloudFile,
		"YAML file with the providers of cloud machines; needs --secret-key-file (default: no machines are launched)")
	f.StringVar(&s.AgentBinaries, "agent-binaries", s.AgentBinaries,
		"folder of programs that new machines of clouds download, as linux-amd64/berth-agent (default: the settings "+
			"of a pool name another source)")
	f.StringArrayVar(&s.FileInputs, "file-inputs", s.FileInputs,
		"machine folder that jobs may read as file:///NAME/…: /NAME for all tenants, or "+
			"/NAME=TENANT,TENANT for these tenants and those below them (repeatable, or separated by ;); agents need "+
			"the flag too")
	s.imageFlags(f)
	f.StringSliceVar(&s.roles, "role", s.roles, "components to run: api, worker, dispatch, leader")
	f.DurationVar(&s.Retention, "retention", s.Retention, "archive ended jobs after this")
	f.DurationVar(&s.LogRetention, "log-retention", s.LogRetention,
		"delete logs of ended jobs after this, not before the job is archived; 0: never")
	f.DurationVar(&s.OutputRetention, "output-retention", s.OutputRetention,
		"delete outputs of ended jobs after this, not before the job is archived; 0: never")
	f.DurationVar(&s.ActRetention, "act-retention", s.ActRetention,
		"delete records of user sessions in containers (table acts) after this, at least 24h; 0: never")
	f.DurationVar(&s.MachineRetention, "machine-retention", s.MachineRetention,
		"delete records of retired machines and of machine faults after this")
	f.DurationVar(&s.SuspectAfter, "suspect-after", s.SuspectAfter,
		"place no work on a machine that has been silent for this long")
	f.DurationVar(&s.LostAfter, "lost-after", s.LostAfter,
		"declare a silent machine lost after this (a job's lost_after overrides it)")
	f.DurationVar(&s.FenceMargin, "fence-margin", s.FenceMargin,
		"replace at_most_one work this long after its machine's fence and the job's stop_grace have passed")
	f.Float64Var(&s.LostShare, "lost-share", s.LostShare,
		"largest share of machines that may be declared lost within a minute; one machine always may")
	f.DurationVar(&s.Grace, "grace", s.Grace,
		"declare no machine lost for this long after an interval in which no API replica was reachable")
	f.DurationVar(&s.ReconcileEvery, "reconcile-every", s.ReconcileEvery,
		"interval between two passes of the reconciler")
	policyFlags(f, &s.Policy)
	f.Float64Var(&s.RatePerSecond, "rate", s.RatePerSecond, "API calls per second allowed for one token")
	f.IntVar(&s.Burst, "burst", s.Burst, "burst of API calls allowed for one token")
	f.Float64Var(&s.SubmitRate, "submit-rate", s.SubmitRate,
		"submits per second allowed for a tenant without submit_rps in its quota, over all replicas; 0: unlimited")
	f.IntVar(&s.MaxConnections, "max-connections", s.MaxConnections,
		"maximum number of connections to the API, half of them for users; the limit on open files must exceed it")
	f.StringVar(&s.TrustedProxies, "trusted-proxies", s.TrustedProxies,
		"networks of reverse proxies in front of the API, such as 10.0.0.0/24,fd00::/64; "+
			"X-Forwarded-For is trusted from these addresses only")
	f.StringVar(&s.Pprof, "pprof", s.Pprof, "loopback address that serves Go profiles (default: none)")
	flags.Collector(f, &s.otlp)
	flags.LogLevel(f, &s.level)
	f.StringVar(&s.logFormat, "log-format", "text", "log format: text or json")
}

// storeFlags registers the flags about the object store.
func (s *settings) storeFlags(f *pflag.FlagSet) {
	f.StringVar(&s.BlobURL, "blob-url", s.BlobURL,
		"object store URL: file:///FOLDER, s3://BUCKET?region=… or gs://BUCKET/PREFIX")
	f.StringVar(&s.ObjectAccess, "object-access", s.ObjectAccess,
		"how machines move large objects to and from an s3:// or gs:// store: direct (by addresses that berthd signs; "+
			"through berthd where the store or a machine cannot use them) or proxy (through berthd)")
	f.BoolVar(&s.CheckpointChunks, "checkpoint-chunks", s.CheckpointChunks,
		"store content that several checkpoints of a tenant share once (checkpoints stored so far can be restored in "+
			"any case; off by default, see docs/operate/configure.md)")
	f.Float64Var(&s.ChunkLooks, "chunk-looks", s.ChunkLooks,
		"most objects of shared content that the leader looks for in the object store, a second on average: each once "+
			"a day, if the limit allows it")
}

// notifyFlags registers the flags about webhooks and about the mail server for notifications.
func (s *settings) notifyFlags(f *pflag.FlagSet) {
	f.StringVar(&s.WebhookAllow, "webhook-allow", s.WebhookAllow,
		"non-public networks that webhooks may call, such as 10.1.0.0/16,fd00::/8; plain http is allowed only there")
	f.StringVar(&s.Mail.Server, "smtp", s.Mail.Server,
		"mail server for notification channels: smtp://[USER@]HOST[:587] (STARTTLS) or smtps://[USER@]HOST[:465] "+
			"(default: no mail is sent)")
	f.StringVar(&s.Mail.From, "smtp-from", s.Mail.From,
		"sender address of notification mail, such as berth@example.com")
	f.StringVar(&s.Mail.PasswordFile, "smtp-password-file", s.Mail.PasswordFile,
		"file with the password of the user in --smtp")
	f.StringVar(&s.Mail.Recipients, "smtp-recipients", s.Mail.Recipients,
		"domains to which notification mail is sent, such as example.com,example.org; *: all "+
			"(default: the domain of --smtp-from)")
}

// imageFlags registers the flags about images of jobs. An image must be allowed by the list of the
// cluster and by the lists of its tenant and of all tenants above.
func (s *settings) imageFlags(f *pflag.FlagSet) {
	f.StringVar(&s.Images, "images", s.Images,
		"registries and repositories that images of jobs may come from, such as ghcr.io/acme,docker.io/library; "+
			"quotas of tenants may allow less (default: all)")
	f.StringVar(&s.ImageSignatures, "image-signatures", s.ImageSignatures,
		"YAML file with rules about the signatures that images of jobs must have; quotas of tenants may demand more "+
			"(default: none)")
	f.BoolVar(&s.ResolveImages, "resolve-images", s.ResolveImages,
		"resolve the tags of submitted jobs' images to digests; this process then calls the registries that users "+
			"name, with the logins of their tenants (role dispatch)")
	f.StringVar(&s.RegistryAllow, "registry-allow", s.RegistryAllow,
		"with --resolve-images: addresses of registries that are not public, such as 10.1.0.7,10.1.0.8; networks are "+
			"allowed")
	f.StringSliceVar(&s.RegistryPlaintext, "registry-plaintext", s.RegistryPlaintext,
		"with --resolve-images: registries, HOST[:PORT] as in names of images, that may be called without TLS; each "+
			"also needs an address in --registry-allow")
	f.StringVar(&s.RegistryCerts, "registry-certs", s.RegistryCerts,
		"with --resolve-images: folder with a folder HOST[:PORT] for each registry of a private authority, with its "+
			"certificates as *.crt, as in /etc/docker/certs.d")
}

// policyFlags registers the flags of the queue policy: the order of waiting jobs, fair shares, reserved
// starts and preemption. docs/operate/tenants.md describes their effect. All replicas need the same
// values: any replica may lead, and every replica explains.
func policyFlags(f *pflag.FlagSet, p *controlplane.Policy) {
	f.StringVar(&p.Order, "order", p.Order, "order of waiting jobs: fair, priority, fifo or srsf")
	f.IntVar(&p.BandWidth, "band-width", p.BandWidth,
		"width of a priority band in points; a higher band always comes first")
	f.DurationVar(&p.Aging, "aging", p.Aging,
		"raise a waiting job's priority by one point each time this passes; 0: never")
	f.BoolVar(&p.AgingCrosses, "aging-crosses", p.AgingCrosses, "allow aging to lift jobs into higher bands")
	f.DurationVar(&p.Overdue, "overdue", p.Overdue,
		"place a job before others of its band after this wait, unless its tenant holds its fair share; 0: never")
	f.DurationVar(&p.HalfLife, "half-life", p.HalfLife,
		"half-life of past usage in the fair shares of tenants; 0: past usage does not count")
	f.DurationVar(&p.EntryPenalty, "entry-penalty", p.EntryPenalty,
		"usage charged to the tenant for each start, as if the job had run this long")
	f.IntVar(&p.Backfill, "backfill", p.Backfill,
		"number of blocked jobs at the head of the queue that get a reserved start, which backfill must "+
			"not delay; 0: none")
	f.DurationVar(&p.PreemptAfter, "preempt-after", p.PreemptAfter,
		"allow a job to preempt others after this wait; 0: never")
	f.DurationVar(&p.MinRuntime, "min-runtime", p.MinRuntime, "minimum run time before a job may be preempted")
	f.DurationVar(&p.NominationFor, "nomination-for", p.NominationFor,
		"how long capacity stays nominated for a job that preempted others; at least 1m")
	flags.Renamed(f, "earmark-for", "nomination-for")
	f.DurationVar(&p.AssumeRun, "assume-run", p.AssumeRun, "assumed run time of a job without time_limit; 0: unlimited")
	f.BoolVar(&p.ShareGPUs, "share-gpus-across-tenants", p.ShareGPUs,
		"let jobs of different tenants share one GPU, which isolates neither their memory nor their faults")
	f.Float64Var(&p.Exponent, "srsf-exponent", p.Exponent,
		"exponent a of remaining time x GPUs^a, the sort key of order srsf")
	f.Float64Var(&p.Outrank, "srsf-outrank", p.Outrank,
		"order srsf: preempt a job whose remaining service exceeds this many times that of the waiting job; 0: never")
}

// parse derives the settings that flags cannot parse themselves. Config.Validate, which
// runs next, checks the values, including the names of roles.
func (s *settings) parse() error {
	// Config holds the default roles until here; the flag starts with the same ones.
	s.Roles = nil
	for _, r := range s.roles {
		s.Roles = append(s.Roles, controlplane.Role(strings.TrimSpace(r)))
	}
	if s.logFormat != "text" && s.logFormat != "json" {
		return fmt.Errorf("--log-format %q: allowed are text, json", s.logFormat)
	}
	return nil
}

// logger returns the logger of the process. The log goes to standard error; standard output
// is only for the first admin token.
func (s *settings) logger() *slog.Logger {
	o := &slog.HandlerOptions{Level: s.level}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

// containerFlags registers the flags about containers of job files that leave a choice to the cluster.
// Without a flag, the column of the table cluster decides, which an upgrade does not change.
func (s *settings) containerFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&s.SecurityFloors, "security-floors", nil,
		"requirements for machines that run jobs of untrusted tenants: COMPONENT=VERSION, such as runc=1.3.6, "+
			"replaces the built-in floor of a component, COMPONENT=none lifts it, and lsm and userns require that "+
			"setting of the engine (default: the built-in floors, and seccomp)")
	f.StringVar(&s.SecretsAs, "secrets-as", s.SecretsAs,
		"how containers receive secrets if the job file has no secrets_as: file, env or both "+
			"(default: file, or both if the database is from before migration 0066)")
	f.StringVar(&s.ContainerUser, "container-user", s.ContainerUser,
		"user of containers if the job file has no user: tenant (a number of the tenant's own) or image "+
			"(default: tenant, or image if the database is from before migration 0074)")
	f.StringVar(&s.ContainerUIDs, "container-uids", s.ContainerUIDs,
		"numbers of users that tenants get, as FIRST-LAST/NUMBER-PER-TENANT; existing ranges of tenants stay "+
			"(default: as set before, at first 2010000000-2109999999/1000)")
}
