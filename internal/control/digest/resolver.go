package digest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/delivery"
	"berth/internal/lib/sealer"
	"berth/wire"
)

// Admission judges whether a tenant may run an image at present. A refusal is an error of slug invalid_spec.
type Admission interface {
	AllowImage(ctx context.Context, tenant berth.TenantID, image string) error
}

// Options are the dependencies and times of a Resolver. DB, Registries, Admission and Logger are required; zero times
// mean the defaults, which tests shorten.
type Options struct {
	DB         *db.DB
	Registries *Registries
	Admission  Admission
	Keys       *sealer.Keys // nil: images with a login are not resolved
	Logger     *slog.Logger
	Metrics    *prometheus.Registry // nil: none

	Look  time.Duration // between two reads of due questions
	Lease time.Duration // after which the question of a process that died is asked again
	First time.Duration // before the second try; then four times as long each time
	For   time.Duration // since a job's submit, how long its image is asked for
}

const (
	abreast = 16 // questions at once in a process
	share   = 2  // questions taken for one tenant at a time; see delivery.Loop

	longestLogin = 4096            // bytes of a secret with a login
	longestWait  = 2 * time.Minute // between two tries
	aliveFor     = time.Minute     // submits request digests for so long after a sign of life
	aliveEvery   = 20 * time.Second
	storeTime    = 30 * time.Second // bounds the writes of an answer
)

// Resolver resolves images in one process.
type Resolver struct {
	Options
	hosts   hosts
	alive   time.Time // latest sign of life
	results *prometheus.CounterVec
}

// New returns a resolver that asks nothing before Run.
func New(o Options) *Resolver {
	o.Look = cmp.Or(o.Look, time.Second)
	o.Registries.Timeout = cmp.Or(o.Registries.Timeout, 10*time.Second)
	o.Lease = cmp.Or(o.Lease, 2*(o.Registries.Timeout+storeTime))
	o.First = cmp.Or(o.First, 5*time.Second)
	o.For = cmp.Or(o.For, 10*time.Minute)
	r := &Resolver{Options: o, results: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_image_questions_total",
		Help: "Queries to registries for the digests of submitted jobs' images, by result.",
	}, []string{"result"})}
	for _, result := range []string{"resolved", "failed", "refused", "unresolvable", "given_up"} {
		r.results.WithLabelValues(result) // shown as 0 from the start
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(r.results)
	}
	return r
}

// Run resolves images until ctx ends. A question that is cut off then is asked again by another process.
func (r *Resolver) Run(ctx context.Context) error {
	loop := delivery.Loop[db.ImageRequest]{
		What: "image requests", Look: r.Look, Most: abreast, Share: share, Logger: r.Logger,
		Tenant: func(q db.ImageRequest) berth.TenantID { return q.Tenant }, Deliver: r.resolve, Claim: r.claim,
	}
	return loop.Run(ctx)
}

// claim takes due questions. It also notes that this process resolves images, since it is called all the time.
func (r *Resolver) claim(ctx context.Context, b delivery.Bounds) ([]db.ImageRequest, error) {
	if now := time.Now(); now.Sub(r.alive) >= aliveEvery {
		if err := r.DB.Images.Alive(ctx, aliveFor); err != nil {
			return nil, err
		}
		r.alive = now
	}
	return r.DB.Images.Claim(ctx, db.ImageClaim{Crowded: b.Crowded, Each: b.Each, Limit: b.Limit, Lease: r.Lease})
}

// resolve asks one question and records the answer. If the record fails, the question is due again at the end of its
// lease.
func (r *Resolver) resolve(ctx context.Context, q db.ImageRequest) {
	log := r.Logger.With("tenant", q.Tenant, "image", q.Image, "jobs", q.Jobs, "try", q.Tries)
	if q.Age >= r.For {
		// The tag may have moved since: an answer would not be the content of the submit.
		r.record(ctx, log, func(ctx context.Context) error { return r.expire(ctx, q) })
		return
	}
	digest, err := r.ask(ctx, q)
	var closed *closedError
	switch {
	case err != nil && ctx.Err() != nil: // another process asks again
	case err == nil:
		r.results.WithLabelValues("resolved").Inc()
		r.record(ctx, log, func(ctx context.Context) error { return r.DB.Images.Resolved(ctx, q, digest) })
	case errors.As(err, &closed):
		r.record(ctx, log, func(ctx context.Context) error {
			return r.later(ctx, q, closed.wait, closed.Error(), false)
		})
	default:
		r.record(ctx, log, func(ctx context.Context) error { return r.failed(ctx, log, q, err) })
	}
}

// closedError is a question that was not asked.
type closedError struct{ wait time.Duration }

func (*closedError) Error() string {
	return "the registry does not answer at present, or has enough questions in flight"
}

// record runs a write of an answer. It goes on for some time after the end of ctx.
func (r *Resolver) record(ctx context.Context, log *slog.Logger, write func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTime)
	defer cancel()
	if err := write(ctx); err != nil {
		log.Warn("cannot record the digest of an image, will ask again", "err", err)
	}
}

// ask returns the digest of a question. The rules are judged first, so that a registry outside of them is never called.
// Errors other than *answerError and *closedError are of this process, or of a rule.
func (r *Resolver) ask(ctx context.Context, q db.ImageRequest) (string, error) {
	if err := r.Admission.AllowImage(ctx, q.Tenant, q.Image); err != nil {
		return "", err
	}
	host, err := hostOf(q.Image)
	if err != nil {
		return "", err
	}
	login, err := r.login(ctx, q)
	if err != nil {
		return "", err
	}
	host, mine, limit := names(host, string(q.Tenant), q.Login)
	if wait, ok := r.hosts.enter(time.Now(), host, mine, limit); !ok {
		return "", &closedError{wait}
	}
	digest, err := r.Registries.Digest(ctx, q.Image, login)
	answer, failed := errors.AsType[*answerError](err)
	now, ill := time.Now(), failed && answer.ill
	closed, opened := r.hosts.leave(host, string(q.Tenant), answer, ill, now)
	own, _ := r.hosts.leave(mine, "", answer, ill, now)
	r.hosts.leave(limit, "", answer, failed && answer.limited, now)
	switch {
	case closed:
		r.Logger.Warn("registry does not answer, machines resolve its images meanwhile", "registry", host,
			"err", answer.detail())
	case own:
		r.Logger.Warn("registry fails for a tenant, machines resolve the tenant's images meanwhile", "registry", host,
			"tenant", q.Tenant, "err", answer.detail())
	case opened:
		r.Logger.Info("registry answers again", "registry", host)
	}
	return digest, err
}

// login opens the login that the jobs name, nil for none. It is a secret of their tenant.
func (r *Resolver) login(ctx context.Context, q db.ImageRequest) (*Login, error) {
	if q.Login == "" {
		return nil, nil
	}
	if r.Keys == nil {
		return nil, &answerError{final: true,
			text: "the control plane cannot open secrets: berthd needs --secret-key-file"}
	}
	found, err := r.DB.Secrets.Sealed(ctx, q.Tenant, []string{q.Login})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, &answerError{final: true, text: fmt.Sprintf("image_auth: there is no secret %s", q.Login)}
	}
	value, err := r.Keys.Open(q.Tenant, found[0].Name, found[0].Key, found[0].Sealed)
	if err != nil {
		return nil, &answerError{final: true, cause: err,
			text: fmt.Sprintf("image_auth: secret %s cannot be opened", q.Login)}
	}
	if len(value) > longestLogin {
		// Servers and clients break connections with long headers, which would look like a failure of the registry.
		return nil, &answerError{final: true, text: fmt.Sprintf("image_auth: secret %s has more than %d bytes",
			q.Login, longestLogin)}
	}
	user, password, ok := strings.Cut(strings.TrimSpace(string(value)), ":")
	if !ok || user == "" {
		return nil, &answerError{final: true,
			text: fmt.Sprintf("image_auth: secret %s is not written USER:PASSWORD", q.Login)}
	}
	return &Login{User: user, Password: password}, nil
}

// failed records a question without a digest.
func (r *Resolver) failed(ctx context.Context, log *slog.Logger, q db.ImageRequest, err error) error {
	answer, answered := errors.AsType[*answerError](err)
	switch {
	case berth.IsSlug(err, berth.SlugInvalidSpec): // a rule of the cluster or of the tenant
		r.results.WithLabelValues("refused").Inc()
		return r.DB.Images.Unresolved(ctx, q, 0, wire.ImageRefused, err.Error())
	case answered && answer.final:
		log.Debug("image cannot be resolved, the first machine decides", "err", answer.detail())
		r.results.WithLabelValues("unresolvable").Inc()
		return r.DB.Images.Unresolved(ctx, q, 0, wire.ImageUnresolvable, answer.text)
	case !answered:
		log.Warn("cannot prepare the question for an image, will retry", "err", err)
		return r.later(ctx, q, delivery.Pause(q.Tries, r.First, longestWait), "the control plane could not ask", true)
	}
	log.Debug("image not resolved, will retry", "err", answer.detail())
	r.results.WithLabelValues("failed").Inc()
	return r.later(ctx, q, max(answer.after, delivery.Pause(q.Tries, r.First, longestWait)), answer.text, true)
}

// expire gives a question up for jobs whose time is over. It is due again at once for the others.
func (r *Resolver) expire(ctx context.Context, q db.ImageRequest) error {
	r.results.WithLabelValues("given_up").Inc()
	reason := cmp.Or(q.Reason, "the control plane did not ask the registry in time")
	if err := r.DB.Images.Unresolved(ctx, q, r.For, wire.ImageGivenUp, reason); err != nil {
		return err
	}
	return r.DB.Images.Postpone(ctx, q, 0, q.Reason, false)
}

// later makes a question due again, and gives it up for jobs whose time is over.
func (r *Resolver) later(ctx context.Context, q db.ImageRequest, wait time.Duration, reason string, asked bool) error {
	if !asked {
		reason = cmp.Or(q.Reason, reason)
	}
	if q.Age >= r.For {
		r.results.WithLabelValues("given_up").Inc()
		if err := r.DB.Images.Unresolved(ctx, q, r.For, wire.ImageGivenUp, reason); err != nil {
			return err
		}
	}
	return r.DB.Images.Postpone(ctx, q, wait, reason, asked)
}
