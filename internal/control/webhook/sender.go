package webhook

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/delivery"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/sealer"
)

// Options are the dependencies and times of a Sender. DB, Keys and Logger are
// required; zero times mean the defaults, which tests shorten.
type Options struct {
	DB      *db.DB
	Keys    *sealer.Keys
	Logger  *slog.Logger
	Network publicnet.Policy     // where calls may go besides public addresses; plain http goes only there
	Metrics *prometheus.Registry // nil: none

	Look    time.Duration // between two reads of due calls
	Timeout time.Duration // of a call, from the look-up of its name to the end of its answer
	Lease   time.Duration // after which the call of a process that died is made again
	First   time.Duration // before the second try; then four times as long each time
	Longest time.Duration // between two tries
	For     time.Duration // how long a call is tried
}

// abreast is the number of concurrent calls. share is the number of calls taken for one tenant at
// a time, so that a tenant has less than twice as many under way.
const (
	abreast = 64
	share   = 4
)

// recordTime bounds the write of a call's result. It is independent of the time
// limit for receivers.
const recordTime = 10 * time.Second

// Sender makes the calls of one process.
type Sender struct {
	Options
	public, allowed *http.Client
	results         *prometheus.CounterVec
}

// New returns a sender that makes no calls before Run. Zero options get their defaults.
func New(o Options) *Sender {
	o.Look = cmp.Or(o.Look, time.Second)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.Lease = cmp.Or(o.Lease, 2*(o.Timeout+recordTime))
	o.First = cmp.Or(o.First, 5*time.Second)
	o.Longest = cmp.Or(o.Longest, time.Hour)
	o.For = cmp.Or(o.For, 24*time.Hour)
	s := &Sender{
		Options: o, public: newClient(o.Network, o.Timeout), allowed: newClient(o.Network.Only(), o.Timeout),
		results: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_webhooks_total",
			Help: "Calls of webhooks, by result."}, []string{"result"}),
	}
	for _, result := range []string{"delivered", "failed", "given_up"} {
		s.results.WithLabelValues(result) // shown as 0 from the start
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.results)
	}
	return s
}

// Run makes calls until ctx ends. A call that is cut off then is made again by
// another process.
func (s *Sender) Run(ctx context.Context) error {
	defer s.public.CloseIdleConnections()
	defer s.allowed.CloseIdleConnections()
	loop := delivery.Loop[db.Notice]{
		What: "webhooks", Look: s.Look, Most: abreast, Share: share, Logger: s.Logger,
		Tenant: func(n db.Notice) berth.TenantID { return n.Tenant }, Deliver: s.deliver,
		Claim: func(ctx context.Context, b delivery.Bounds) ([]db.Notice, error) {
			return s.DB.Outbox.Claim(ctx,
				db.NoticeClaim{Crowded: b.Crowded, Each: b.Each, Limit: b.Limit, Lease: s.Lease})
		},
	}
	return loop.Run(ctx)
}

// deliver makes one call and records its result. If the record fails, the call is due
// again when the lease ends.
func (s *Sender) deliver(ctx context.Context, n db.Notice) {
	err := s.Call(ctx, n.Tenant, n.URL, n.ID(), n.Body)
	if ctx.Err() != nil && err != nil {
		return
	}
	log := s.Logger.With("job_id", n.Job, "tenant", n.Tenant, "id", n.ID(), "try", n.Tries)
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	var result string
	switch {
	case err == nil:
		result, err = "delivered", s.DB.Outbox.Delivered(record, n)
	case Final(err) || n.Age >= s.For:
		log.Info("webhook failed, no retries left", "err", err)
		result, err = "given_up", s.DB.Outbox.GiveUp(record, n, s.epitaph(n, err))
	default:
		log.Debug("webhook failed, will retry", "err", err)
		result, err = "failed", s.DB.Outbox.Failed(record, n, delivery.Pause(n.Tries, s.First, s.Longest))
	}
	s.results.WithLabelValues(result).Inc()
	if err != nil {
		log.Warn("cannot record the webhook result, will call it again", "err", err)
	}
}

// epitaph returns the text of the job's history for a call that was given up. It
// names the host alone, since the URL may contain a password.
func (s *Sender) epitaph(n db.Notice, err error) string {
	tries := fmt.Sprintf("%d tries", n.Tries)
	if n.Tries == 1 {
		tries = "one try"
	}
	return fmt.Sprintf("gave up calling notify[%d] (%s) of status %s after %s: %v", n.Hook, hostOf(n.URL),
		n.Status, tries, err)
}
