package main

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"berth/internal/controlplane"
	"berth/internal/flags"
	"berth/internal/tracing"
)

// settings is the control plane's configuration as it is typed.
type settings struct {
	controlplane.Config
	roles      []string
	logFormat  string
	level      slog.Level
	adminToken string
	otlp       string // endpoint, as typed
	traces     tracing.Options
}

func (s *settings) flags(f *pflag.FlagSet) {
	for _, r := range s.Roles {
		s.roles = append(s.roles, string(r))
	}
	f.StringVar(&s.Listen, "listen", s.Listen, "address of the API; port 0 takes a free one")
	f.StringVar(&s.TLSCert, "tls-cert", s.TLSCert, "certificate file of the API; without it, plain HTTP")
	f.StringVar(&s.TLSKey, "tls-key", s.TLSKey, "key file of the certificate")
	f.StringVar(&s.DatabaseURL, "database-url", s.DatabaseURL, "PostgreSQL, as postgres://user@host/berth")
	f.IntVar(&s.DatabaseConns, "database-conns", s.DatabaseConns, "most connections to the database, beside a few for leases alone")
	flags.Temporal(f, &s.TemporalAddress, &s.TemporalNamespace)
	f.StringVar(&s.BlobURL, "blob-url", s.BlobURL, "object store: file:///absolute/folder or s3://bucket?region=…")
	f.StringVar(&s.SecretKeyFile, "secret-key-file", s.SecretKeyFile, "file with a key of 64 hexadecimal digits a line: the first seals secrets, all open them; without it, none are kept")
	f.StringVar(&s.WebhookAllow, "webhook-allow", s.WebhookAllow, "networks besides public addresses in which webhooks may be called, such as 10.1.0.0/16,fd00::/8; plain http goes only there")
	f.StringArrayVar(&s.FileInputs, "file-inputs", s.FileInputs, "folder of machines that jobs may read as file:///NAME/…: /NAME, or /NAME=TENANT,TENANT for these tenants and those below them (repeatable, or parted by ;); agents name it too")
	f.StringSliceVar(&s.roles, "role", s.roles, "parts to play: api, worker, dispatch, leader")
	f.DurationVar(&s.Retention, "retention", s.Retention, "how long ended jobs stay before they are archived")
	f.DurationVar(&s.OutputRetention, "output-retention", s.OutputRetention, "how long outputs of jobs that have ended are kept, at least until the job is archived; 0: for ever")
	f.DurationVar(&s.MachineRetention, "machine-retention", s.MachineRetention, "how long it stays on record what machines were and what failed there")
	f.DurationVar(&s.SuspectAfter, "suspect-after", s.SuspectAfter, "silence after which a machine gets no work")
	f.DurationVar(&s.LostAfter, "lost-after", s.LostAfter, "silence after which a machine is lost, where no job of it says otherwise")
	f.DurationVar(&s.FenceMargin, "fence-margin", s.FenceMargin, "at_most_one work runs elsewhere this long after its machine's fence and its own grace")
	f.Float64Var(&s.LostShare, "lost-share", s.LostShare, "share of all machines that may be lost within a minute; one always may")
	f.DurationVar(&s.Grace, "grace", s.Grace, "after a gap in which no API could hear machines, none is declared lost for this long")
	f.DurationVar(&s.ReconcileEvery, "reconcile-every", s.ReconcileEvery, "pause between two passes of the reconciler")
	policyFlags(f, &s.Policy)
	f.Float64Var(&s.RatePerSecond, "rate", s.RatePerSecond, "calls a second that one token may make")
	f.IntVar(&s.Burst, "burst", s.Burst, "calls that one token may make at once")
	f.StringVar(&s.Pprof, "pprof", s.Pprof, "loopback address for Go profiles; empty: none")
	flags.Collector(f, &s.otlp)
	flags.LogLevel(f, &s.level)
	f.StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// policyFlags are those about the order of jobs; see docs/tenants.md.
func policyFlags(f *pflag.FlagSet, p *controlplane.Policy) {
	f.StringVar(&p.Order, "order", p.Order, "of waiting jobs: fair, priority, fifo or srsf")
	f.IntVar(&p.BandWidth, "band-width", p.BandWidth, "points of priority in a band; a higher band always comes first")
	f.DurationVar(&p.Aging, "aging", p.Aging, "a job that waits gains a point of priority each time this passes; 0: never")
	f.BoolVar(&p.AgingCrosses, "aging-crosses", p.AgingCrosses, "let aging take jobs into higher bands")
	f.DurationVar(&p.Overdue, "overdue", p.Overdue, "after waiting so long a job comes before others of its band, unless its tenant holds its part; 0: never")
	f.DurationVar(&p.HalfLife, "half-life", p.HalfLife, "after which past use counts half in the shares of tenants; 0: it does not count")
	f.DurationVar(&p.EntryPenalty, "entry-penalty", p.EntryPenalty, "what a start costs its tenant's share, as if it had run so long")
	f.IntVar(&p.Backfill, "backfill", p.Backfill, "blocked jobs at the head of the queue with a reserved start, which others may not delay; 0: none")
	f.DurationVar(&p.PreemptAfter, "preempt-after", p.PreemptAfter, "after waiting so long a job displaces others; 0: never")
	f.DurationVar(&p.MinRuntime, "min-runtime", p.MinRuntime, "a job runs so long before it is displaced")
	f.DurationVar(&p.EarmarkFor, "earmark-for", p.EarmarkFor, "how long room is kept for a job that displaced others, 1m and more")
	f.DurationVar(&p.AssumeRun, "assume-run", p.AssumeRun, "how long a job without time_limit is taken to run; 0: for ever")
	f.Float64Var(&p.Exponent, "srsf-exponent", p.Exponent, "a in remaining time x GPUs^a, by which order srsf goes")
	f.Float64Var(&p.Outrank, "srsf-outrank", p.Outrank, "in order srsf a job displaces those with so many times its service to go; 0: none for that")
}

// parse reads the settings that are words.
func (s *settings) parse() error {
	s.Roles = nil
	for _, r := range s.roles {
		s.Roles = append(s.Roles, controlplane.Role(strings.TrimSpace(r)))
	}
	if s.logFormat != "text" && s.logFormat != "json" {
		return fmt.Errorf("--log-format %q: allowed are text, json", s.logFormat)
	}
	return nil
}

func (s *settings) logger() *slog.Logger {
	o := &slog.HandlerOptions{Level: s.level}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}
