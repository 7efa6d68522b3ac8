package agent

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"berth"
	"berth/wire"
)

// credentials keeps the machine's credential valid. The credential is a token that every call carries
// and that ends a day after its renewal; the key renews it, and never leaves the machine. See
// docs/adr/0069.
//
// A renewal needs only the key. So neither a lost answer nor an outage that outlasts the token locks
// the machine out. The agent chooses the next token itself, stores it, and asks for it until
// it has the answer; the present token holds until then.
type credentials struct {
	state    *state
	machine  berth.MachineID
	hostBoot string
	timing   Timing
	log      *slog.Logger
	client   *client            // carries the present token
	mu       sync.Mutex         // held during a renewal, and for the fields below
	key      ed25519.PrivateKey // nil: it could not be stored yet
	now      credential
	rest     time.Time // keep makes no renewal before, after one that failed or was refused
	refused  bool      // the last renewal was refused: recover rests, too
}

// openCredentials returns the machine's credential and key. Without a credential the machine joins; a
// machine of an earlier version gets a key, which keep binds to its credential.
func openCredentials(ctx context.Context, cfg Config, st *state, log *slog.Logger) (*credentials, error) {
	c := &credentials{state: st, machine: cfg.Machine, hostBoot: cfg.HostBoot, timing: cfg.Timing, log: log}
	key, err := st.key()
	if err != nil {
		return nil, err
	}
	stored, err := st.credential()
	if errors.Is(err, errDamaged) && key != nil {
		log.Warn("stored credential is damaged, the key of the machine asks for another one", "err", err)
		stored, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	if stored != nil && stored.Machine != cfg.Machine {
		return nil, fmt.Errorf("state folder %s belongs to machine %s, not %s", cfg.StateDir, stored.Machine,
			cfg.Machine)
	}
	if stored == nil {
		j := joining{credentials: c, cfg: cfg, key: key, doubt: key != nil}
		if stored, err = j.run(ctx); err != nil {
			return nil, err
		}
		key = j.key
	}
	if key == nil {
		stored.Bound = false // the key was lost: another one can be bound to a credential without a key only
		if key, err = st.makeKey(); err != nil {
			log.Warn("cannot make the key of the machine, will retry", "err", err) // the credential holds
		}
	}
	c.key, c.now, c.client = key, *stored, newClient(cfg.Server, stored.Token)
	return c, nil
}

// joining is the join of a machine.
type joining struct {
	*credentials
	cfg   Config
	key   ed25519.PrivateKey // nil: none yet
	doubt bool               // a join with this key may have succeeded without an answer
}

// run asks for a credential until the server gives one or refuses. While the result of a join is unknown, the
// agent asks with its key, since a join token is good once.
func (j *joining) run(ctx context.Context) (*credential, error) {
	if j.cfg.JoinToken == "" && !j.doubt {
		return nil, fmt.Errorf("machine %s has not joined yet: a join token is needed once", j.machine)
	}
	for wait := j.timing.backoff(); ; {
		cred, err := j.try(ctx)
		if err == nil {
			return cred, j.state.storeCredential(*cred)
		}
		if refused(err) {
			err = fmt.Errorf("join as machine %s: %w", j.machine, err)
			switch berth.CodeOf(err) {
			case berth.CodeUnauthorized, berth.CodeForbidden, berth.CodeConflict:
				return nil, lasting{err}
			default: // such as a URL that is no control plane's; it may be by mistake, and for some time
				return nil, err
			}
		}
		j.log.Warn("join failed, will retry", "err", err)
		if err := wait.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// try makes one attempt.
//
// In doubt, the agent asks with the key, then joins with the key, and then asks with the key again: the join may
// have waited for an earlier join with this key, which has spent the join token. A key is replaced only after the
// server has refused to bind it, since the key belongs to another machine or to an earlier life of this one.
// Another refusal proves nothing about the key: a replica of the previous version does not know keys.
func (j *joining) try(ctx context.Context) (*credential, error) {
	if !j.doubt {
		return j.join(ctx)
	}
	token := j.cfg.JoinToken != ""
	cred, err := j.byKey(ctx, !token)
	if err == nil || !refused(err) {
		return cred, err
	}
	if !token {
		return nil, fmt.Errorf("%w (a join token is needed)", err)
	}
	cred, err = j.join(ctx)
	if err == nil || !refused(err) {
		return cred, err
	}
	if cred, again := j.byKey(ctx, true); again == nil || !refused(again) {
		return cred, again
	}
	if !berth.IsSlug(err, wire.SlugKeyKnown) {
		return nil, err
	}
	j.key = nil
	return j.join(ctx)
}

// join asks for a credential with the join token, and binds it to the key.
func (j *joining) join(ctx context.Context) (*credential, error) {
	if j.key == nil {
		key, err := j.state.makeKey()
		if err != nil {
			return nil, err
		}
		j.key = key
	}
	c := newClient(j.cfg.Server, j.cfg.JoinToken)
	c.metrics = j.cfg.Metrics
	defer c.close()
	req := wire.JoinRequest{Token: j.cfg.JoinToken, Machine: j.machine}
	if j.cfg.Identity != nil {
		id, err := j.cfg.Identity.Read(ctx)
		if err != nil {
			return nil, err
		}
		req.Identity = &id
	}
	answer, err := c.join(ctx, j.key, req)
	if err != nil {
		j.doubt = !refused(err)
		return nil, err
	}
	j.log.Info("joined", "server", j.cfg.Server)
	cred := &credential{Machine: j.machine, Token: answer.Token, Cluster: answer.Cluster}
	if answer.TTLSeconds > 0 {
		cred.Bound, cred.RenewAt = true, renewAt(answer.TTLSeconds)
	}
	return cred, nil
}

// byKey asks for a credential after the answer of a join was lost, or after this machine has lost its credential.
// With proves, the call carries the machine's watermark. A restored database that does not know the machine takes
// it back by this watermark. A join comes first, since it needs no approval.
func (j *joining) byKey(ctx context.Context, proves bool) (*credential, error) {
	c := newClient(j.cfg.Server, "")
	c.metrics = j.cfg.Metrics
	defer c.close()
	if seen := openWatermark(j.cfg.StateDir, j.log).stored; proves && !seen.IsZero() {
		c.mark = seen.String
	}
	cred := &credential{Machine: j.machine, Token: wire.NewMachineToken(), Bound: true, Number: time.Now().UnixMilli()}
	answer, err := c.renew(ctx, wire.NewRenewal(j.key, j.machine, cred.Number, cred.Token), j.hostBoot)
	if last := lastRenewal(err); last > 0 { // the clock was ahead at that time
		cred.Number = max(last+1, time.Now().UnixMilli())
		answer, err = c.renew(ctx, wire.NewRenewal(j.key, j.machine, cred.Number, cred.Token), j.hostBoot)
	}
	if err != nil {
		return nil, err
	}
	cred.Cluster, cred.RenewAt = answer.Cluster, renewAt(answer.TTLSeconds)
	j.log.Info("joined earlier, credential received by the key of the machine", "server", j.cfg.Server)
	if answer.Returned {
		j.log.Warn(returnedLog)
	}
	return cred, nil
}

// returnedLog is the log line of a machine that returned; see wire.RenewResponse.
const returnedLog = "restored database does not know this machine, which waits for the approval of an admin"

// renewAt returns the time to renew a credential: after half of its life, more or less a tenth, so
// that machines that joined together do not renew together.
func renewAt(ttlSeconds int) time.Time {
	ttl := time.Duration(ttlSeconds) * time.Second
	return time.Now().Add(time.Duration(float64(ttl) * (0.4 + 0.2*rand.Float64())))
}

// keep renews the credential each time that it is due, until ctx ends.
func (c *credentials) keep(ctx context.Context) {
	for sleep(ctx, time.Until(c.due())) == nil {
		c.mu.Lock()
		if time.Now().Before(c.dueLocked()) { // recover was faster
			c.mu.Unlock()
			continue
		}
		_ = c.renew(ctx) // has logged the error, and set the time of the next try
		c.mu.Unlock()
	}
}

// due returns the time of the next renewal.
func (c *credentials) due() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dueLocked()
}

// dueLocked is due with c.mu held. A credential without a key is due at once.
func (c *credentials) dueLocked() time.Time {
	at := c.now.RenewAt
	if !c.now.Bound {
		at = time.Time{}
	}
	if c.rest.After(at) {
		return c.rest
	}
	return at
}

// recover renews a credential that the server does not accept, and reports whether it did: the
// credential has ended, or the database was restored from before its renewal.
//
// After a refusal, recover rests as keep does. It does not rest after a failure: the server answers
// again, and the machine counts as lost unless it registers soon. The caller's backoff paces the attempts.
func (c *credentials) recover(ctx context.Context) (renewed bool, err error) {
	was := c.client.token()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client.token() != was { // keep was faster
		return true, nil
	}
	if c.refused && time.Now().Before(c.rest) {
		return false, nil
	}
	err = c.renew(ctx)
	return err == nil, err
}

// renew makes one attempt at a renewal. c.mu is held. After a failure no other attempt follows before
// c.rest.
func (c *credentials) renew(ctx context.Context) error {
	err := c.tryRenew(ctx)
	c.refused = refused(err) && berth.CodeOf(err) != berth.CodeNotFound
	switch {
	case err == nil:
		c.rest = time.Time{}
	case ctx.Err() != nil:
	case berth.CodeOf(err) == berth.CodeNotFound:
		c.rest = time.Now().Add(c.timing.RenewPause)
		c.log.Debug("server does not renew credentials yet", "err", err)
	case c.refused:
		c.rest = time.Now().Add(c.timing.RenewPause)
		c.log.Error("machine credential not renewed", "err", err)
	default:
		c.rest = time.Now().Add(c.timing.RenewPause/2 + time.Duration(rand.Int64N(int64(c.timing.RenewPause))))
		c.log.Warn("renewal of the machine credential failed, will retry", "err", err)
	}
	return err
}

// tryRenew binds the key if the server does not have it, and asks for the next token.
func (c *credentials) tryRenew(ctx context.Context) (err error) {
	if c.key == nil {
		if c.key, err = c.state.makeKey(); err != nil {
			return err
		}
	}
	var unbound error
	if !c.now.Bound {
		// The key may be bound although the token has ended: an earlier process could not store that.
		unbound = c.bind(ctx, c.now.Token)
		if berth.IsSlug(unbound, wire.SlugKeyKnown) {
			// The join was by a replica of the previous version, which did not look at the key.
			if c.key, err = c.state.makeKey(); err != nil {
				return err
			}
			unbound = c.bind(ctx, c.now.Token)
		}
		if unbound != nil && berth.CodeOf(unbound) != berth.CodeUnauthorized {
			return unbound
		}
	}
	for range 2 {
		err = c.askNext(ctx)
		switch {
		case err == nil:
			return nil
		case berth.IsSlug(err, wire.SlugRenewalReplayed):
			// Another token with a higher number is asked for. The number of a restored state folder
			// lies behind.
			c.now.Next, c.now.Number = "", max(c.now.Number, lastRenewal(err))
		case c.now.Former != "" && forgotten(err):
			// The database was restored from before the binding. It answers machine_exists to a machine
			// with a watermark from before the restore.
			if lost := c.bind(ctx, c.now.Former); lost != nil {
				return errors.Join(err, lost)
			}
		case refused(err):
			return errors.Join(err, unbound)
		default:
			return err
		}
	}
	return c.askNext(ctx)
}

// forgotten reports whether a database does not know the key of the machine.
func forgotten(err error) bool {
	return berth.IsSlug(err, wire.SlugUnknownKey) || berth.IsSlug(err, wire.SlugMachineExists)
}

// bind binds the machine's key to a token of a join with an earlier version.
func (c *credentials) bind(ctx context.Context, token string) error {
	with := &client{base: c.client.base, http: c.client.http, mark: c.client.mark}
	with.setToken(token)
	if err := with.bindKey(ctx, c.key, c.machine); err != nil {
		return fmt.Errorf("bind the machine's key: %w", err)
	}
	c.log.Info("machine credential bound to the key of the machine")
	c.now.Bound, c.now.Former = true, token
	c.store()
	return nil
}

// askNext asks the server to accept the next token, and takes it into use. The token is stored before
// the call, so that another process of the agent repeats the same renewal.
func (c *credentials) askNext(ctx context.Context) error {
	if c.now.Next == "" {
		c.now.Next, c.now.Number = wire.NewMachineToken(), max(c.now.Number+1, time.Now().UnixMilli())
		c.store()
	}
	answer, err := c.client.renew(ctx, wire.NewRenewal(c.key, c.machine, c.now.Number, c.now.Next), c.hostBoot)
	if err != nil {
		return err
	}
	if !c.now.Bound {
		c.now.Bound, c.now.Former = true, cmp.Or(c.now.Former, c.now.Token)
	}
	c.now.Token, c.now.Next, c.now.RenewAt = c.now.Next, "", renewAt(answer.TTLSeconds)
	c.now.Cluster = cmp.Or(c.now.Cluster, answer.Cluster)
	c.store()
	c.client.setToken(c.now.Token)
	if answer.Returned {
		c.log.Warn(returnedLog)
	}
	c.log.Info("machine credential renewed", "renew_at", c.now.RenewAt)
	return nil
}

// setCluster stores the id of the cluster.
func (c *credentials) setCluster(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Cluster = id
	c.store()
}

// store writes the credential. A failure is no reason to stop: the key renews the credential again.
func (c *credentials) store() {
	if err := c.state.storeCredential(c.now); err != nil {
		c.log.Error("cannot store the machine credential", "err", err)
	}
}
