package api

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/internal/control/admission"
	"berth/internal/control/blob"
	"berth/internal/lib/enginesilence"
	"berth/wire"
)

// AgentDeps are the dependencies that only the agents' protocol needs.
type AgentDeps struct {
	Blobs *blob.Store // nil: machines can store neither logs nor checkpoints

	// Direct lets machines move large objects straight to and from Blobs, by addresses that this server signs, if
	// the store has signed addresses.
	Direct bool

	// ProofLimit bounds one proof that the store keeps the conditions of signed addresses; 0: 10 seconds.
	ProofLimit time.Duration

	// Parts says which objects machines store by parts; zero: the defaults.
	Parts PartSizes

	// Chunks lets machines store large files of checkpoints by chunks, which the checkpoints of a tenant share.
	// Checkpoints with chunks can be restored in any case.
	Chunks bool

	// Resolver answers whether the host of an input exists; nil: the system's name servers.
	Resolver *net.Resolver
}

// maxAgentBody is the longest JSON body of an agent's call: a machine full of
// small containers registers with a few hundred bytes of each.
const maxAgentBody = 16 << 20

// agentHandlers serve the calls with which a machine's agent registers, reports and
// claims work. The routes of all agents' calls are under /agent/v1, behind the check that
// the caller holds a machine's token: caller(ctx).Machine is the machine. POST
// /agent/v1/join and POST /agent/v1/renew are open, since their callers have only a join token
// or the key of their machine. Handlers return errors (*berth.Error and others); renderError
// answers them.
//
// These routes are plain handlers without huma: they are the system's hot path, both ends
// are Berth's own, and the public API description leaves them out.
type agentHandlers struct {
	agents    sessions
	admission *admission.Controller
	secrets   *secretHandlers
	poker     Poker
	log       *slog.Logger
}

func (h *agentHandlers) mount(r *router) {
	r.agents.POST("/register", h.agentRegister)
	r.agents.POST("/sync", h.agentSync)
	r.agents.POST("/claim", h.agentClaim)
	r.agents.POST("/stages", h.agentStages)
	r.agents.POST("/use", h.agentUse)
	r.agents.POST("/engine", h.agentEngine)
	r.agents.POST("/unfinished", h.agentUnfinished)
	r.agents.POST("/stall", h.agentStall)
	r.agents.POST("/image", h.agentImage)
}

// readAgent decodes the JSON body of an agent's call strictly. The body must arrive
// within agentBodyTimeout; afterwards the read deadline is lifted, because a sync may be
// held open until its machine gets new orders.
func readAgent[T any](c echo.Context) (T, error) {
	readDeadline(c, time.Now().Add(agentBodyTimeout))
	v, err := decodeAgent[T](c, maxAgentBody)
	readDeadline(c, time.Time{}) // the call may now be held open
	return v, err
}

// decodeAgent decodes a body of at most limit bytes, which must hold exactly one JSON
// value without unknown fields.
func decodeAgent[T any](c echo.Context, limit int64) (T, error) {
	var v T
	// MaxBytesReader needs the server's own response to close the connection of a body
	// that is too long.
	d := json.NewDecoder(http.MaxBytesReader(c.Response().Writer, c.Request().Body, limit))
	d.DisallowUnknownFields()
	err := d.Decode(&v)
	if err == nil {
		_, end := d.Token() // d.More would pass over a closing bracket
		if end == nil {
			err = errors.New("more than one value")
		} else if !errors.Is(end, io.EOF) {
			err = end
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return v, &berth.Error{Code: berth.CodeInvalid, Slug: slugTooLarge, Message: "the body is too long"}
	}
	if err != nil {
		return v, berth.Errorf(berth.CodeInvalid, "the body cannot be read: %v", err)
	}
	return v, nil
}

func machineOf(c echo.Context) berth.MachineID { return caller(c.Request().Context()).Machine }

// agentRegister opens an agent's session. Jobs that lost members by the machine's reboot
// are poked, so that their workflows react at once.
func (h *agentHandlers) agentRegister(c echo.Context) error {
	req, err := readAgent[wire.RegisterRequest](c)
	if err != nil {
		return err
	}
	if req.Watermark, err = seen(c); err != nil {
		return err
	}
	answer, lost, err := h.agents.Register(c.Request().Context(), machineOf(c), req)
	if err != nil {
		return err
	}
	h.log.Info("machine registered", "machine_id", machineOf(c), "epoch", answer.Epoch, "kills", len(answer.Kill),
		"lost_jobs", len(lost))
	poke(h.poker, lost)
	return c.JSON(http.StatusOK, answer)
}

// poke notifies workflows that their members have ended without a report from the agent.
func poke(p Poker, jobs []berth.JobID) {
	if p != nil && len(jobs) > 0 {
		p.Poke(jobs...)
	}
}

// seen returns the highest watermark that the calling machine has stored, or the zero
// value if the machine sends none. An old watermark from the database and a newer one
// here reveal a restored backup.
func seen(c echo.Context) (wire.StoredWatermark, error) {
	value := c.Request().Header.Get(wire.HeaderWatermark)
	if value == "" {
		return wire.StoredWatermark{}, nil
	}
	return wire.ParseWatermark(value)
}

// agentSync renews the machine's lease, takes its reports and answers with its orders.
// The fail points surround only calls with reports.
func (h *agentHandlers) agentSync(c echo.Context) error {
	req, err := readAgent[wire.SyncRequest](c)
	if err != nil {
		return err
	}
	if req.Watermark, err = seen(c); err != nil {
		return err
	}
	if req.EngineSilent, err = enginesilence.Parse(c.Request().Header.Get(enginesilence.Header)); err != nil {
		return err
	}
	if req.Stuck, err = wire.ParseStuck(c.Request().Header.Get(wire.HeaderStuck)); err != nil {
		return err
	}
	if value := c.Request().Header.Get(wire.HeaderCloudNotice); value != "" {
		n, err := wire.ParseCloudNotice(value)
		if err != nil {
			return err
		}
		req.CloudNotice = &n
	}
	ctx := c.Request().Context()
	answer, err := h.agents.Sync(ctx, machineOf(c), req)
	if err != nil && ctx.Err() != nil {
		return nil // the agent has closed the connection, so no answer is needed
	}
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, answer)
}

// agentClaim assigns an allocation to its agent. The answer carries the secrets and the
// volumes of the job, which no other answer contains.
func (h *agentHandlers) agentClaim(c echo.Context) error {
	req, err := readAgent[wire.ClaimRequest](c)
	if err != nil {
		return err
	}
	if req.Watermark, err = seen(c); err != nil {
		return err
	}
	req.Sources = c.Request().Header.Get(wire.HeaderSources) != ""
	req.Parts = c.Request().Header.Get(wire.HeaderParts) != ""
	req.Chunks = c.Request().Header.Get(wire.HeaderChunks) != ""
	req.Holds = c.Request().Header.Get(wire.HeaderHolds) != ""
	claim, err := h.agents.Claim(c.Request().Context(), machineOf(c), req)
	if err != nil {
		return err
	}
	if err := h.secrets.handOut(c.Request().Context(), &claim); err != nil {
		return err
	}
	if err := h.secrets.demandSignatures(c, &claim); err != nil {
		return err
	}
	if err := h.secrets.chooseUser(c, &claim); err != nil {
		return err
	}
	if len(claim.Spec.VolumesNamed()) > 0 { // the operator's present rules count, not those at the submit
		if claim.Volumes, err = h.admission.Allowed(c.Request().Context(), claim.Tenant); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, claim)
}

// pruneTimeout bounds the deletion of unneeded objects. The reconciler removes objects
// that are left behind.
const pruneTimeout = 20 * time.Second

// readPassedOver reads the headers of a checkpoint that a restore passed over.
func readPassedOver(c echo.Context, p *wire.CheckpointReport) error {
	h := c.Request().Header
	if text := h.Get(wire.HeaderPassedOverFor); text != "" {
		step, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return berth.Errorf(berth.CodeInvalid, "header %s: %.40q is not a step", wire.HeaderPassedOverFor, text)
		}
		p.PassedOverFor = &step
	}
	if text := h.Get(wire.HeaderPassedOverForAttempt); text != "" {
		attempt, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return berth.Errorf(berth.CodeInvalid, "header %s: %.40q is not an attempt",
				wire.HeaderPassedOverForAttempt, text)
		}
		p.PassedOverForAttempt = int(attempt)
	}
	return nil
}

// agentCheckpoint records one member's shard of a checkpoint. Shards that the database
// has pruned or refused are deleted only after the commit, so that no recorded shard
// lacks its objects.
func (h *agentObjectHandlers) agentCheckpoint(c echo.Context) error {
	return h.takeCheckpoint(c, false)
}

// takeCheckpoint is agentCheckpoint, for checkpoints with or without chunks.
func (h *agentObjectHandlers) takeCheckpoint(c echo.Context, chunked bool) error {
	p, err := readAgent[wire.CheckpointReport](c)
	if err != nil {
		return err
	}
	if text := c.Request().Header.Get(wire.HeaderMetricValue); text != "" {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			return berth.Errorf(berth.CodeInvalid, "header %s: %.40q is not a finite number", wire.HeaderMetricValue,
				text)
		}
		p.MetricValue = &v
	}
	if err := readPassedOver(c, &p); err != nil {
		return err
	}
	if p.WriteTime, err = readMillis(c, wire.HeaderWriteTime); err != nil {
		return err
	}
	if p.StoreTime, err = readMillis(c, wire.HeaderStoreTime); err != nil {
		return err
	}
	extra, err := h.verifyShard(c, &p, chunked)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	pruned, err := h.reported.RegisterCheckpoint(ctx, machineOf(c), p)
	if err != nil {
		h.deleteShards(ctx, pruned)
		return err
	}
	h.deleteShards(ctx, pruned)
	h.deleteExtra(ctx, p, extra)
	return c.NoContent(http.StatusNoContent)
}

// maxMillis is the longest time in a header of an agent: ten years.
const maxMillis = 10 * 365 * 24 * 3600 * 1000

// readMillis reads a header with a time in milliseconds; nil: the agent did not send it.
func readMillis(c echo.Context, name string) (*time.Duration, error) {
	text := c.Request().Header.Get(name)
	if text == "" {
		return nil, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 || ms > maxMillis {
		return nil, berth.Errorf(berth.CodeInvalid, "header %s: %.40q is not a number of milliseconds from 0 to %d",
			name, text, int64(maxMillis))
	}
	d := time.Duration(ms) * time.Millisecond
	return &d, nil
}

// blobStore is this server's object store, or the error for a server without a store.
type blobStore struct {
	store *blob.Store // nil: machines can store neither logs nor checkpoints
}

func (b *blobStore) blobs() (*blob.Store, error) {
	if b.store == nil {
		return nil, berth.Errorf(berth.CodeUnavailable, "this server has no blob store")
	}
	return b.store, nil
}

// readAll reads a body of at most limit bytes, within agentBodyTimeout.
func readAll(c echo.Context, limit int64) ([]byte, error) {
	readDeadline(c, time.Now().Add(agentBodyTimeout))
	b, err := io.ReadAll(http.MaxBytesReader(c.Response().Writer, c.Request().Body, limit))
	readDeadline(c, time.Time{})
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &berth.Error{Code: berth.CodeInvalid, Slug: slugTooLarge, Message: "the body is too long"}
	}
	if err != nil {
		return nil, berth.Errorf(berth.CodeInvalid, "the body cannot be read: %v", err)
	}
	return b, nil
}
