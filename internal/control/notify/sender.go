package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/delivery"
	"berth/internal/control/webhook"
	"berth/internal/lib/sealer"
	"berth/spec"
)

// Caller calls addresses of users. It is the sender of webhooks.
type Caller interface {
	Call(ctx context.Context, tenant berth.TenantID, address, id, body string) error
	Post(ctx context.Context, address, body string) error
}

// Options are the dependencies and times of a Sender. DB, Keys, Caller and Logger are required; zero times mean the
// defaults, which tests shorten.
type Options struct {
	DB      *db.DB
	Keys    *sealer.Keys
	Caller  Caller
	Mailer  *Mailer // nil: no mail, and messages to channels of this kind fail
	API     string  // address of the dashboard for links; empty: no links
	Logger  *slog.Logger
	Metrics *prometheus.Registry // nil: none

	Look       time.Duration // between two reads of due channels
	Lease      time.Duration // after which the message of a process that died is sent again
	ChatRest   time.Duration // between two messages to a chat
	MailRest   time.Duration // between two mails to a channel
	First      time.Duration // before the second try; then four times as long each time
	Longest    time.Duration // between two tries
	For        time.Duration // how long a notification is kept
	SweepEvery time.Duration // between two sweeps of notifications without a channel
}

// Bounds of deliveries. most and keep bound the rows of a channel: a message has at most most notifications, and a
// channel that fails keeps the newest keep.
const (
	abreast = 16
	share   = 4
	shown   = 10
	most    = 10_000
	keep    = 100_000
)

// recordTime bounds the write of a result.
const recordTime = 10 * time.Second

// Sender delivers the messages of one process.
type Sender struct {
	Options
	results *prometheus.CounterVec
	dropped prometheus.Counter
}

// New returns a sender that delivers nothing before Run.
func New(o Options) *Sender {
	o.Look = cmp.Or(o.Look, time.Second)
	o.Lease = cmp.Or(o.Lease, 5*time.Minute) // above the sum of the limits of a mail, and of ten calls
	o.ChatRest = cmp.Or(o.ChatRest, 5*time.Second)
	o.MailRest = cmp.Or(o.MailRest, time.Minute)
	o.First = cmp.Or(o.First, 5*time.Second)
	o.Longest = cmp.Or(o.Longest, 30*time.Minute)
	o.For = cmp.Or(o.For, 24*time.Hour)
	o.SweepEvery = cmp.Or(o.SweepEvery, 10*time.Minute)
	s := &Sender{Options: o, results: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_notifications_total",
		Help: "Notifications of channels by kind of the channel and result of a try.",
	}, []string{"kind", "result"})}
	for _, kind := range spec.ChannelKinds {
		for _, result := range []string{"delivered", "failed", "refused"} {
			s.results.WithLabelValues(kind, result) // shown as 0 from the start
		}
	}
	s.dropped = prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_notifications_dropped_total",
		Help: "Notifications that were not delivered within a day, or above the number that a channel keeps."})
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.results, s.dropped)
	}
	return s
}

// Run delivers until ctx ends. It returns after the deliveries under way and the sweep have ended.
func (s *Sender) Run(ctx context.Context) error {
	sweeps := make(chan struct{})
	go func() {
		defer close(sweeps)
		s.sweep(ctx)
	}()
	defer func() { <-sweeps }()
	loop := delivery.Loop[db.ChannelMessage]{
		What: "notifications", Look: s.Look, Most: abreast, Share: share, Logger: s.Logger, Deliver: s.deliver,
		Tenant: func(m db.ChannelMessage) berth.TenantID { return m.Tenant },
		Claim: func(ctx context.Context, b delivery.Bounds) ([]db.ChannelMessage, error) {
			return s.DB.Channels.Claim(ctx, db.ChannelClaim{Crowded: b.Crowded, Each: b.Each, Limit: b.Limit,
				Lease: s.Lease, First: shown, Most: most})
		},
	}
	return loop.Run(ctx)
}

// sweep deletes notifications that are too old or have no channel, until ctx ends. The result is a
// number for the log and a metric; the notifications themselves are lost.
func (s *Sender) sweep(ctx context.Context) {
	tick := time.NewTicker(s.SweepEvery)
	defer tick.Stop()
	for {
		dropped, err := s.DB.Channels.Sweep(ctx, s.For, keep)
		if err != nil && ctx.Err() == nil {
			s.Logger.Warn("cannot delete old notifications, will retry", "err", err)
		}
		if dropped > 0 {
			s.dropped.Add(float64(dropped))
			s.Logger.Warn("notifications dropped, their channels failed for too long or were deleted",
				"number", dropped)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// deliver sends one message and records the result. If the record fails, the message is sent again when
// the lease ends. A delivery that the end of the process cut off is not recorded as failed.
func (s *Sender) deliver(ctx context.Context, m db.ChannelMessage) {
	o := outcome{sent: m.Total}
	if m.Kind == spec.ChannelWebhook {
		o = s.call(ctx, m)
	} else if o.err = s.send(ctx, m); o.err != nil {
		o.sent = 0
	}
	if ctx.Err() != nil && o.err != nil && o.sent == 0 {
		return
	}
	log := s.Logger.With("tenant", m.Tenant, "channel", m.Name, "kind", m.Kind, "message", m.Batch, "try", m.Tries)
	s.results.WithLabelValues(m.Kind, "delivered").Add(float64(o.sent))
	s.results.WithLabelValues(m.Kind, "refused").Add(float64(o.refused))
	// The result is recorded also while the process stops: otherwise the receiver would get the
	// message again.
	record, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	err := s.DB.Channels.Remove(record, o.done)
	switch {
	case err != nil:
	case o.err == nil:
		err = s.DB.Channels.Delivered(record, m, s.rest(m.Kind))
	default:
		log.Info("notifications not delivered, will retry", "err", o.err)
		s.results.WithLabelValues(m.Kind, "failed").Add(float64(m.Total - o.sent - o.refused))
		wait := delivery.Pause(m.Tries, s.First, s.Longest)
		if o.sent > 0 {
			wait = s.First // the receiver works, so one notification that it refuses must not delay the next ones
		}
		err = s.DB.Channels.Failed(record, m, o.err.Error(), wait)
	}
	if err != nil {
		log.Warn("cannot record the result of a message, will send it again", "err", err)
	}
}

// outcome is the result of one try. A message to a webhook may be delivered in part.
type outcome struct {
	sent, refused int     // notifications; refused: they can never be delivered
	done          []int64 // notifications of a webhook that need no further call
	err           error   // why the others are left; for users
}

// call makes the calls of a message to a webhook, one for each notification. A call that fails with an
// answer does not keep the others from being made. Without an answer the receiver is away, so the rest
// of the calls would only wait for it.
func (s *Sender) call(ctx context.Context, m db.ChannelMessage) (o outcome) {
	for _, n := range m.First {
		err := s.Caller.Call(ctx, m.Tenant, m.URL, "msg_"+n.UID, n.Body)
		switch {
		case err == nil:
			o.sent++
			o.done = append(o.done, n.ID)
		case webhook.Final(err):
			o.refused++
			o.done = append(o.done, n.ID)
			o.err = err
		case !webhook.Answered(err):
			o.err = err
			return o
		default:
			o.err = err
		}
	}
	return o
}

// rest returns how long a channel gets no further message after a delivery. A webhook has no rest,
// since each of its notifications is a call.
func (s *Sender) rest(kind string) time.Duration {
	return map[string]time.Duration{spec.ChannelSlack: s.ChatRest, spec.ChannelEmail: s.MailRest}[kind]
}

// send delivers one message to a chat or by mail. Its errors are for users. They never contain the
// address of a chat, which is a secret.
func (s *Sender) send(ctx context.Context, m db.ChannelMessage) error {
	if len(m.First) == 0 {
		return nil // dropped as too old, or deleted with the channel
	}
	c, err := describe(m, s.API)
	if err != nil {
		return err
	}
	if m.Kind == spec.ChannelSlack {
		address, err := s.chatAddress(ctx, m)
		if err != nil {
			return err
		}
		body, err := chatBody(c)
		if err != nil {
			return err
		}
		return s.Caller.Post(ctx, address, body)
	}
	if s.Mailer == nil {
		return errNoMail
	}
	if to := s.Mailer.RefusedRecipient(m.To); to != "" {
		return fmt.Errorf("this cluster sends no mail to %s; allowed: %s", to, s.Mailer.Allowed())
	}
	subject, body := mailText(c)
	id := "berth." + m.First[0].UID
	if err := s.Mailer.Send(ctx, m.To, id, subject, body); err != nil {
		s.Logger.Warn("mail server refused or failed", "tenant", m.Tenant, "channel", m.Name, "err", err)
		return mailFault(err)
	}
	return nil
}

// chatAddress returns the address of a chat, which is a secret of the channel's tenant. It is read at
// each delivery, so a changed secret applies to the next one.
func (s *Sender) chatAddress(ctx context.Context, m db.ChannelMessage) (string, error) {
	list, err := s.DB.Secrets.Sealed(ctx, m.Tenant, []string{m.Secret})
	if err != nil {
		return "", errors.New("the secret with its address cannot be read")
	}
	if len(list) == 0 {
		return "", fmt.Errorf("there is no secret %s with its address", m.Secret)
	}
	value, err := s.Keys.Open(m.Tenant, list[0].Name, list[0].Key, list[0].Sealed)
	if err != nil {
		return "", fmt.Errorf("secret %s cannot be opened with the keys of this cluster", m.Secret)
	}
	address, err := spec.ParseChatAddress(string(value))
	if err != nil {
		return "", fmt.Errorf("secret %s %w", m.Secret, err)
	}
	return address, nil
}
