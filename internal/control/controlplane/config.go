package controlplane

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/internal/control/admission"
	"berth/internal/control/digest"
	"berth/internal/control/floors"
	"berth/internal/lib/publicnet"
	"berth/spec"
)

// Role is a part that a process plays.
type Role string

// The roles. One process may play all, and any number may play each: leaders
// elect one.
const (
	RoleAPI      Role = "api"      // users' and agents' calls
	RoleWorker   Role = "worker"   // workflows and their steps
	RoleDispatch Role = "dispatch" // starts workflows of submitted jobs
	RoleLeader   Role = "leader"   // places, reaps, reconciles
)

// Roles lists all roles.
var Roles = []Role{RoleAPI, RoleWorker, RoleDispatch, RoleLeader}

// The values of Config.ObjectAccess: how machines move large objects.
const (
	DirectAccess = "direct" // by signed addresses, if the store has any; through the API where that fails
	ProxyAccess  = "proxy"  // through the API
)

// Config holds all settings of a control plane.
type Config struct {
	Listen            string // of the API
	TLSCert           string // files; both empty: plain HTTP
	TLSKey            string
	AllowPlaintext    bool   // accept connections beyond this machine without TLS
	Dashboard         bool   // serve pages next to the API
	PublicURL         string // by which users reach the API, for links; empty: no links
	PeerURL           string // by which other replicas reach this API; empty: the listen address
	DatabaseURL       string
	DatabaseConns     int
	TemporalAddress   string
	TemporalNamespace string
	BlobURL           string
	ObjectAccess      string  // of machines: DirectAccess or ProxyAccess
	CheckpointChunks  bool    // large files of checkpoints are stored by chunks
	ChunkLooks        float64 // the leader's looks at chunks in the object store, a second on average
	Roles             []Role
	Retention         time.Duration // of terminal jobs before they are archived
	MachineRetention  time.Duration // of the history of machines, and of failures counted against them
	LogRetention      time.Duration // of logs of archived jobs; 0: no limit
	ActRetention      time.Duration // of records of sessions in containers; 0: no limit
	OutputRetention   time.Duration // of outputs of archived jobs; 0: no limit
	SuspectAfter      time.Duration // of silence a machine gets no work
	LostAfter         time.Duration // of silence it is lost, where no job says otherwise
	FenceMargin       time.Duration // for at_most_one work, beyond its machine's fence and its own grace
	LostShare         float64       // of all machines may be lost within a minute
	Grace             time.Duration // without verdicts after a gap in which no API could hear machines; see grace
	ReconcileEvery    time.Duration
	Policy            Policy  // of placing
	RatePerSecond     float64 // calls of one token
	Burst             int
	SubmitRate        float64  // submits a second of a tenant whose quota does not say, over all replicas; 0: no limit
	MaxConnections    int      // of the API
	TrustedProxies    string   // networks of proxies whose X-Forwarded-For is believed
	AdminTokenFile    string   // keeps the first admin token; empty: the token goes to Options.FirstToken
	SecretKeyFile     string   // keys that secrets are sealed with; empty: none are kept
	SecretsAs         string   // default of secrets_as in job files; empty: as the database has it
	ContainerUser     string   // default of user in job files; empty: as the database has it
	ContainerUIDs     string   // numbers of users that tenants get; empty: as the database has it
	CloudFile         string   // providers of machines; empty: none
	AgentBinaries     string   // folder of agents that the API serves to new machines; empty: none
	WebhookAllow      string   // networks besides public addresses that webhooks may be called in
	Mail              Mail     // server for notifications by mail; zero: none
	FileInputs        []string // folders of machines that jobs may read, see admission.ParseVolumes
	ResolveImages     bool     // ask registries for the digests of submitted jobs' images; see package digest
	RegistryAllow     string   // networks besides public addresses in which registries are asked
	RegistryPlaintext []string // registries, HOST[:PORT], that are asked without TLS if they have none
	RegistryCerts     string   // folder with certificates of registries, see digest.Registries; empty: none
	Images            string   // registries and repositories of images, see admission.ParseImages
	ImageSignatures   string   // file of rules about signatures of images, see admission.ReadSignatureRules
	SecurityFloors    []string // of machines that take jobs of untrusted tenants, see floors.Parse
	Pprof             string   // address for profiles; empty: none
}

// Default returns the defaults of all flags. It is not valid by itself: the database and the blob
// store have no default.
func Default() Config {
	return Config{
		Listen:            "127.0.0.1:7070",
		Dashboard:         true,
		DatabaseConns:     16,
		TemporalAddress:   "127.0.0.1:7233",
		TemporalNamespace: "default",
		ObjectAccess:      ProxyAccess,
		Roles:             Roles,
		Retention:         30 * 24 * time.Hour,
		MachineRetention:  90 * 24 * time.Hour,
		SuspectAfter:      berth.MachineLeaseTTL,
		LostAfter:         spec.DefaultLostAfter,
		FenceMargin:       berth.FenceMargin,
		LostShare:         0.1,
		Grace:             time.Minute,
		ReconcileEvery:    10 * time.Second,
		Policy:            defaultPolicy(),
		RatePerSecond:     200,
		Burst:             400,
		SubmitRate:        100,
		ChunkLooks:        100,
		MaxConnections:    8192,
	}
}

// Plays reports whether this process has a role.
func (c Config) Plays(r Role) bool { return slices.Contains(c.Roles, r) }

// Validate returns all faults at once, so that one start shows every fault. Settings of a
// role are validated only if this process has the role.
func (c Config) Validate() error {
	var faults []error
	require := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	// Unknown roles are faults of their own: a typing error must not run a smaller process.
	for _, r := range c.Roles {
		require(slices.Contains(Roles, r), "role %q is not known: allowed are api, worker, dispatch, leader", r)
	}
	require(len(c.Roles) > 0, "no role: allowed are api, worker, dispatch, leader")
	require(c.DatabaseURL != "", "no database: set --database-url or BERTH_DATABASE_URL to postgres://user@host/berth")
	require(c.DatabaseConns >= 4 && c.DatabaseConns <= 1000, "%d database connections: allowed are 4 to 1000",
		c.DatabaseConns)
	require(isHostPort(c.TemporalAddress), "temporal address %q: write HOST:PORT", c.TemporalAddress)
	if c.Plays(RoleAPI) {
		require(isHostPort(c.Listen), "listen address %q: write HOST:PORT", c.Listen)
		require(c.BlobURL != "",
			"no blob store: set --blob-url or BERTH_BLOB_URL to file:///FOLDER, s3://BUCKET?region=… or gs://BUCKET")
		require(c.ObjectAccess == DirectAccess || c.ObjectAccess == ProxyAccess,
			"object-access %q: allowed are direct, proxy", c.ObjectAccess)
		require((c.TLSCert == "") == (c.TLSKey == ""), "TLS needs a certificate and its key")
		require(c.MaxConnections >= 64 && c.MaxConnections <= 1_000_000,
			"%d connections of the API: allowed are 64 to 1000000", c.MaxConnections)
		require(c.RatePerSecond > 0 && c.Burst > 0, "rate %v and burst %d: both must be above 0",
			c.RatePerSecond, c.Burst)
	}
	require(c.PublicURL == "" || isHTTP(c.PublicURL), "public-url %q: write http://HOST or https://HOST", c.PublicURL)
	require(c.PeerURL == "" || isHTTP(c.PeerURL), "peer-url %q: write http://HOST:PORT or https://HOST:PORT", c.PeerURL)
	require(c.ChunkLooks >= 1 && c.ChunkLooks <= 10_000, "chunk-looks %g: allowed are 1 to 10000", c.ChunkLooks)
	require(c.SubmitRate >= 0 && c.SubmitRate <= 1e5, "submit-rate %g: allowed are 0 to 100000", c.SubmitRate)
	require(c.AdminTokenFile == "" || filepath.IsAbs(c.AdminTokenFile),
		"admin-token-file %q: must be an absolute path", c.AdminTokenFile)
	_, err := publicnet.ParseNetworks(c.TrustedProxies)
	require(err == nil, "trusted-proxies: %v", err)
	_, err = publicnet.Parse(c.WebhookAllow)
	require(err == nil, "webhook-allow: %v", err)
	_, err = c.Mail.mailer(c.AllowPlaintext)
	require(err == nil, "smtp: %v", err)
	_, err = admission.ParseVolumes(c.FileInputs)
	require(err == nil, "file-inputs: %v", err)
	_, err = admission.ParseImages(c.Images)
	require(err == nil, "images: %v", err)
	_, err = admission.ReadSignatureRules(c.ImageSignatures)
	require(err == nil, "image-signatures: %v", err)
	require(c.SecretsAs == "" || slices.Contains(spec.SecretsForms, c.SecretsAs),
		"secrets-as %q: allowed are file, env and both", c.SecretsAs)
	require(slices.Contains([]string{"", spec.UserTenant, spec.UserImage}, c.ContainerUser),
		"container-user %q: allowed are tenant and image", c.ContainerUser)
	if c.ContainerUIDs != "" {
		_, err = spec.ParseUserPool(c.ContainerUIDs)
		require(err == nil, "container-uids: %v", err)
	}
	require(c.CloudFile == "" || c.SecretKeyFile != "",
		"cloud %s: needs secret-key-file, since requests for machines hold join tokens", c.CloudFile)
	require(c.AgentBinaries == "" || filepath.IsAbs(c.AgentBinaries), "agent-binaries %q: must be an absolute path",
		c.AgentBinaries)
	require(c.Pprof == "" || isLoopback(c.Pprof), "pprof address %q: allowed is HOST:PORT on loopback", c.Pprof)
	for name, d := range map[string]time.Duration{
		"retention": c.Retention, "suspect-after": c.SuspectAfter, "lost-after": c.LostAfter,
		"fence-margin": c.FenceMargin, "reconcile-every": c.ReconcileEvery,
	} {
		require(d > 0, "%s %s: must be above 0", name, d)
	}
	require(c.MachineRetention >= failure.LemonHours*time.Hour,
		"machine-retention %s: must be at least %d h, in which failures count against a machine", c.MachineRetention,
		failure.LemonHours)
	require(c.ActRetention == 0 || c.ActRetention >= 24*time.Hour,
		"act-retention %s: must be at least 24h; 0 keeps records of sessions without limit", c.ActRetention)
	require(c.LogRetention >= 0, "log-retention %s: must not be negative; 0 keeps logs without limit", c.LogRetention)
	require(c.OutputRetention >= 0, "output-retention %s: must not be negative; 0 keeps outputs for ever",
		c.OutputRetention)
	require(c.Grace >= 0, "grace %s: must not be negative", c.Grace)
	require(c.LostAfter >= c.SuspectAfter, "lost-after %s is shorter than suspect-after %s", c.LostAfter,
		c.SuspectAfter)
	require(c.LostShare > 0 && c.LostShare <= 1, "lost-share %g: must be above 0 and at most 1", c.LostShare)
	faults = append(append(faults, c.plaintext()...), c.registries()...)
	return errors.Join(append(append(faults, floorFault(c.SecurityFloors)), c.Policy.faults()...)...)
}

// registries returns the faults of the settings about registries.
func (c Config) registries() (faults []error) {
	if _, err := publicnet.Parse(c.RegistryAllow); err != nil {
		faults = append(faults, fmt.Errorf("registry-allow: %w", err))
	}
	for _, host := range c.RegistryPlaintext {
		if err := digest.CheckHost(host); err != nil {
			faults = append(faults, fmt.Errorf("registry-plaintext: %w", err))
		}
	}
	if c.RegistryCerts != "" && !filepath.IsAbs(c.RegistryCerts) {
		faults = append(faults, fmt.Errorf("registry-certs %q: must be an absolute path", c.RegistryCerts))
	}
	return faults
}

// silence returns the limits by which silent machines are judged.
func (c Config) silence() db.Silence {
	return db.Silence{Suspect: c.SuspectAfter, Lost: c.LostAfter, Margin: c.FenceMargin, Share: c.LostShare}
}

// grace returns the time without verdicts after a gap of the API or a freeze. The leader and
// processes that only serve the API both use it, so that --grace has one meaning.
func (c Config) grace() time.Duration { return c.silence().Grace(c.Grace) }

// isHostPort reports whether s is an address with a port. The host may be empty.
func isHostPort(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return err == nil && port != ""
}

// isHTTP reports whether an address is one of HTTP, without a path or a query.
func isHTTP(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
		strings.TrimSuffix(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

// isLoopback reports whether only this machine can reach an address HOST:PORT.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && publicnet.Loopback(host)
}

// LogValue shows the configuration without its secrets, for the log line at the start. Passwords in
// addresses are left out.
func (c Config) LogValue() slog.Value {
	roles := make([]string, len(c.Roles))
	for i, r := range c.Roles {
		roles[i] = string(r)
	}
	return slog.GroupValue(
		slog.String("listen", c.Listen), slog.Bool("dashboard", c.Dashboard),
		slog.Bool("tls", c.TLSCert != ""), slog.Bool("allow_plaintext", c.AllowPlaintext),
		slog.String("public_url", c.PublicURL),
		slog.String("roles", strings.Join(roles, ",")),
		slog.String("database_url", redact(c.DatabaseURL)), slog.Int("database_conns", c.DatabaseConns),
		slog.String("temporal_address", c.TemporalAddress), slog.String("temporal_namespace", c.TemporalNamespace),
		slog.String("blob_url", redact(c.BlobURL)), slog.String("object_access", c.ObjectAccess),
		slog.Bool("checkpoint_chunks", c.CheckpointChunks), slog.Float64("chunk_looks", c.ChunkLooks),
		slog.Duration("retention", c.Retention),
		slog.Duration("machine_retention", c.MachineRetention), slog.Duration("output_retention", c.OutputRetention),
		slog.Duration("log_retention", c.LogRetention), slog.Duration("act_retention", c.ActRetention),
		slog.Duration("suspect_after", c.SuspectAfter), slog.Duration("lost_after", c.LostAfter),
		slog.Duration("fence_margin", c.FenceMargin), slog.Float64("lost_share", c.LostShare),
		slog.Duration("grace", c.Grace),
		slog.Duration("reconcile_every", c.ReconcileEvery), slog.Float64("rate", c.RatePerSecond),
		slog.Int("burst", c.Burst),
		slog.Float64("submit_rate", c.SubmitRate), slog.Int("max_connections", c.MaxConnections),
		slog.String("trusted_proxies", c.TrustedProxies),
		slog.String("secret_key_file", c.SecretKeyFile), slog.String("webhook_allow", c.WebhookAllow),
		slog.Bool("resolve_images", c.ResolveImages), slog.String("registry_allow", c.RegistryAllow),
		slog.Any("registry_plaintext", c.RegistryPlaintext), slog.String("registry_certs", c.RegistryCerts),
		slog.String("smtp", c.Mail.Server),
		slog.String("cloud", c.CloudFile),
		slog.String("agent_binaries", c.AgentBinaries), slog.String("pprof", c.Pprof), slog.Any("policy", c.Policy),
	)
}

// redact shows where a URL leads, without its password and its parameters,
// among which keys may be.
func redact(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		if s == "" {
			return ""
		}
		return "(not shown)" // a keyword string may hold a password anywhere
	}
	if u.RawQuery != "" {
		u.RawQuery = "..."
	}
	return u.Redacted()
}

// floorFault returns the fault of security floors, or nil.
func floorFault(list []string) error {
	if _, err := floors.Parse(list); err != nil {
		return fmt.Errorf("security-floors: %w", err)
	}
	return nil
}
