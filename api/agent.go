package api

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/blob"
	"berth/internal/lib/enginesilence"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// AgentDeps are the dependencies of the agents' protocol alone.
type AgentDeps struct {
	Blobs *blob.Store // nil: machines can store neither logs nor checkpoints
}

// maxAgentBody is the longest JSON body of an agent's call: a machine full of
// small containers registers with a few hundred bytes of each.
const maxAgentBody = 16 << 20

// agentHandlers serve the calls with which a machine's agent registers, reports and
// claims work. The routes of all agents' calls are under /agent/v1, behind the check
// that the caller holds a machine's token: caller(ctx).Machine is the machine.
// POST /agent/v1/join alone is open, since its caller has only a join token.
// Handlers return errors (*berth.Error and others); renderError answers them.
//
// These routes are plain handlers: they are the system's hot path, both ends
// are our own, and they are no part of the public description.
type agentHandlers struct {
	agents    *db.Agents
	admission *admission.Controller
	secrets   *secretHandlers
	poker     Poker
	log       *slog.Logger
}

func (h *agentHandlers) mount(r *router) {
	r.agents.POST("/register", h.agentRegister)
	r.agents.POST("/sync", h.agentSync)
	r.agents.POST("/claim", h.agentClaim)
}

// readAgent decodes a JSON body strictly.
func readAgent[T any](c echo.Context) (T, error) {
	readDeadline(c, time.Now().Add(agentBodyTimeout))
	v, err := decodeAgent[T](c, maxAgentBody)
	readDeadline(c, time.Time{}) // the call may be held now
	return v, err
}

func decodeAgent[T any](c echo.Context, limit int64) (T, error) {
	var v T
	// The response that the server made knows how to close a connection whose body
	// is too long.
	d := json.NewDecoder(http.MaxBytesReader(c.Response().Writer, c.Request().Body, limit))
	d.DisallowUnknownFields()
	err := d.Decode(&v)
	if err == nil && d.More() {
		err = errors.New("more than one value")
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

func (h *agentHandlers) agentRegister(c echo.Context) error {
	req, err := readAgent[wire.RegisterRequest](c)
	if err != nil {
		return err
	}
	if req.Watermark, err = seen(c); err != nil {
		return err
	}
	if err := failpoint.Hit("api.register.before"); err != nil {
		return err
	}
	answer, lost, err := h.agents.Register(c.Request().Context(), machineOf(c), req)
	if err != nil {
		return err
	}
	if err := failpoint.Hit("api.register.after"); err != nil {
		return err
	}
	h.log.Info("machine registered", "machine_id", machineOf(c), "epoch", answer.Epoch, "kills", len(answer.Kill),
		"lost_jobs", len(lost))
	poke(h.poker, lost)
	return c.JSON(http.StatusOK, answer)
}

// poke notifies workflows that their members have ended without a report of
// their agent.
func poke(p Poker, jobs []berth.JobID) {
	if p != nil && len(jobs) > 0 {
		p.Poke(jobs...)
	}
}

// seen is the highest watermark of the calling machine, zero if it sends none.
func seen(c echo.Context) (wire.StoredWatermark, error) {
	value := c.Request().Header.Get(wire.HeaderWatermark)
	if value == "" {
		return wire.StoredWatermark{}, nil
	}
	return wire.ParseWatermark(value)
}

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
	ctx := c.Request().Context()
	if len(req.Reports) > 0 {
		if err := failpoint.Hit("api.report.before"); err != nil {
			return err
		}
	}
	answer, err := h.agents.Sync(ctx, machineOf(c), req)
	if err != nil && ctx.Err() != nil {
		return nil // the agent has closed the connection, so no answer is needed
	}
	if err != nil {
		return err
	}
	if len(req.Reports) > 0 {
		if err := failpoint.Hit("api.report.after"); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, answer)
}

func (h *agentHandlers) agentClaim(c echo.Context) error {
	req, err := readAgent[wire.ClaimRequest](c)
	if err != nil {
		return err
	}
	if req.Watermark, err = seen(c); err != nil {
		return err
	}
	if err := failpoint.Hit("api.claim.before"); err != nil {
		return err
	}
	claim, err := h.agents.Claim(c.Request().Context(), machineOf(c), req)
	if err != nil {
		return err
	}
	if err := failpoint.Hit("api.claim.after"); err != nil {
		return err
	}
	if err := h.secrets.handOut(c.Request().Context(), &claim); err != nil {
		return err
	}
	if len(claim.Spec.VolumesNamed()) > 0 { // as the operator says now, not when it was submitted
		if claim.Volumes, err = h.admission.Allowed(c.Request().Context(), claim.Tenant); err != nil {
			return err
		}
	}
	return c.JSON(http.StatusOK, claim)
}

// pruneTimeout bounds the deletion of unneeded objects. The reconciler removes
// objects that are left behind.
const pruneTimeout = 20 * time.Second

func (h *agentObjectHandlers) agentCheckpoint(c echo.Context) error {
	p, err := readAgent[wire.CheckpointReport](c)
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	if err := failpoint.Hit("api.checkpoint.before"); err != nil {
		return err
	}
	pruned, err := h.objects.RegisterCheckpoint(ctx, machineOf(c), p)
	if err != nil {
		h.deleteShards(ctx, pruned)
		return err
	}
	if err := failpoint.Hit("api.checkpoint.after"); err != nil {
		return err
	}
	h.deleteShards(ctx, pruned)
	return c.NoContent(http.StatusNoContent)
}

// blobStore is the store of objects of this server, if it has one.
type blobStore struct {
	store *blob.Store // nil: machines can store neither logs nor checkpoints
}

func (b *blobStore) blobs() (*blob.Store, error) {
	if b.store == nil {
		return nil, berth.Errorf(berth.CodeUnavailable, "this server has no blob store")
	}
	return b.store, nil
}

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
