package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/wire"
)

// This file lets machines move objects straight to and from the object store, by addresses that this server signs
// (docs/adr/0086-machines-move-objects-by-signed-addresses.md).

// minSigned is the length from which on an object is worth a signed address, in bytes. The request for an address
// costs this server about as much as an object of this length.
const minSigned = 1 << 20

// The values of the label way of berth_object_transfers_total.
const (
	waySigned   = "signed"   // by a signed address
	wayServer   = "server"   // through this server, as intended
	wayFallback = "fallback" // through this server, because a machine could not use a signed address
)

// newObjectTransfers returns the counter of objects of machines, with all its series.
func newObjectTransfers(r *prometheus.Registry) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_object_transfers_total",
		Help: "Checkpoints' files, outputs and other objects that machines stored (put) and read (get), by way: " +
			"signed (addresses signed), server (through this process), fallback (through this process, since a " +
			"machine could not use a signed address).",
	}, []string{"method", "way"})
	for _, method := range []string{"put", "get"} {
		for _, way := range []string{waySigned, wayServer, wayFallback} {
			c.WithLabelValues(method, way)
		}
	}
	r.MustRegister(c)
	return c
}

// count counts an object that passes this server.
func (h *agentObjectHandlers) count(c echo.Context, method string) {
	way := wayServer
	if c.Request().Header.Get(wire.HeaderFallback) != "" {
		way = wayFallback
	}
	h.transfers.WithLabelValues(method, way).Inc()
}

// signs reports whether this server hands out addresses at all, once the store is proven.
func (h *agentObjectHandlers) signs() bool {
	return h.signing != nil && h.store != nil && h.store.Signs()
}

// signing is the proof that the store keeps the conditions of signed addresses. Until then no address is signed: a
// condition that a store ignores protects nothing.
type signing struct {
	log *slog.Logger

	mu     sync.Mutex
	proven bool
	next   time.Time // of the next proof
}

const (
	proofTime    = 10 * time.Second // of one proof
	proofPause   = time.Minute      // after a proof without a result
	unboundPause = time.Hour        // after the proof that the store ignores a condition
)

// newSigning returns an unproven store's signing, or nil if the operator does not want signed addresses.
func newSigning(d Deps) *signing {
	if !d.Agent.Direct {
		return nil
	}
	return &signing{log: d.Logger}
}

// holds reports whether the store is proven, and proves it if the last proof is long ago. Calls that come meanwhile
// wait.
func (p *signing) holds(ctx context.Context, store *blob.Store) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proven || time.Now().Before(p.next) {
		return p.proven
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), proofTime)
	defer cancel()
	err := store.ProveSigning(ctx)
	if err == nil {
		p.proven = true
		p.log.Info("object store keeps the conditions of signed addresses, machines use it directly")
		return true
	}
	pause := proofPause
	if _, unbound := errors.AsType[blob.UnboundError](err); unbound {
		pause = unboundPause
	}
	p.next = time.Now().Add(pause)
	p.log.Warn("object store not proven fit for signed addresses, machines move objects through this server",
		"err", err, "next_try", pause)
	return false
}

// objectAccess answers which objects machines move by signed addresses.
func (h *agentObjectHandlers) objectAccess(c echo.Context) error {
	var a wire.ObjectAccess
	if h.signs() && h.signing.holds(c.Request().Context(), h.store) {
		a = wire.ObjectAccess{Direct: true, MinBytes: minSigned, MaxBytes: blob.MaxSigned}
	}
	return c.JSON(http.StatusOK, a)
}

// agentAddress signs an address of an object for a machine that may read or write the object now, by the rules of
// agentGetObject and agentPutObject.
func (h *agentObjectHandlers) agentAddress(c echo.Context) error {
	req, err := readAgent[wire.AddressRequest](c)
	if err != nil {
		return err
	}
	write := req.Method == http.MethodPut
	if !write && req.Method != http.MethodGet {
		return berth.Errorf(berth.CodeInvalid, "method %.20q: allowed are GET, PUT", req.Method)
	}
	place, err := blob.ParseKey(req.Key)
	if err != nil {
		return err
	}
	at := db.Session{AgentBoot: req.AgentBoot, Epoch: req.Epoch}
	if err := h.authorize(c, place, write, at); err != nil {
		return err
	}
	ctx := c.Request().Context()
	if !h.signs() || !signable(place) || !h.signing.holds(ctx, h.store) {
		return c.JSON(http.StatusOK, wire.ObjectAddress{})
	}
	var a blob.SignedAddress
	method := "get"
	if write {
		method = "put"
		sum, err := blob.ParseSHA256(req.SHA256)
		if err != nil {
			return err
		}
		if req.Exists {
			o, err := h.store.Info(ctx, req.Key)
			if err != nil && berth.CodeOf(err) != berth.CodeNotFound {
				return err
			}
			return c.JSON(http.StatusOK, wire.ObjectAddress{Stored: o.Is(req.Bytes, sum)})
		}
		if err := h.storeWithin(c, req.Key, place, max(req.Bytes, req.Rest), at); err != nil {
			return err
		}
		if a, err = h.store.SignPut(ctx, req.Key, req.Bytes, sum, blob.AddressLife); err != nil {
			return err
		}
	} else if a, err = h.store.SignGet(ctx, req.Key, blob.AddressLife); err != nil {
		return err
	}
	h.transfers.WithLabelValues(method, waySigned).Inc()
	c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return c.JSON(http.StatusOK, wire.ObjectAddress{URL: a.URL, Header: a.Header, Until: a.Until})
}

// signable reports whether objects at a place are written once and swept when no row names them: the files of
// checkpoints, and outputs. This server reads manifests itself, and other objects are replaced again and again.
func signable(p blob.Place) bool {
	if _, ok := stepOf(p); ok {
		return strings.Count(p.Path, "/") == 2 && path.Base(p.Path) != berth.ManifestName
	}
	return strings.HasPrefix(p.Path, db.StoredOutputs+"/") && strings.HasSuffix(p.Path, berth.OutputSuffix) &&
		strings.Count(p.Path, "/") == 1
}

// errMissing refuses a report about an object that is not in the store as reported.
func errMissing(format string, args ...any) error {
	return &berth.Error{Code: berth.CodeConflict, Slug: wire.SlugObjectMissing, Message: fmt.Sprintf(format, args...)}
}

// verifyOutput compares a reported output with the object in the store: its bytes may have passed no server of
// Berth. A repeated report of a registered output needs no object.
func (h *agentObjectHandlers) verifyOutput(c echo.Context, p wire.OutputReport) error {
	if !h.signs() {
		return nil
	}
	ctx := c.Request().Context()
	tenant, known, err := h.objects.OutputBefore(ctx, p.Job, p.Attempt, p.Rank, p.Output.Name)
	if err != nil || known {
		return err
	}
	key := berth.OutputKey(tenant, p.Job, p.Attempt, p.Rank, p.Output.Name)
	place, err := blob.ParseKey(key)
	if err != nil {
		return err
	}
	if err := h.reporter(c, place, db.Session{AgentBoot: p.AgentBoot, Epoch: p.Epoch}); err != nil {
		return err
	}
	sum, err := blob.ParseSHA256(p.Output.SHA256)
	if err != nil {
		return err
	}
	o, err := h.store.Info(ctx, key)
	switch {
	case berth.CodeOf(err) == berth.CodeNotFound:
		return errMissing("output %.100q: the object store does not have it", p.Output.Name)
	case err != nil:
		return err
	case o.Bytes != p.Output.Stored || o.SHA256 != nil && *o.SHA256 != sum:
		return errMissing("output %.100q: the object store has %d other bytes than the reported %d", p.Output.Name,
			o.Bytes, p.Output.Stored)
	}
	return nil
}

// verifyShard compares a reported checkpoint with the objects in the store: the manifest by its hash, the files that
// it lists by their sizes, and their sum with the size that the tenant's quota counts. A repeated report of a
// registered or pruned shard needs no objects. The tenant is that of the job's row: the key in the report is checked
// against it and is not trusted.
func (h *agentObjectHandlers) verifyShard(c echo.Context, p wire.CheckpointReport) error {
	if !h.signs() || p.Bad != "" || p.Manifest == "" || p.SHA256 == "" {
		return nil
	}
	tenant, known, err := h.objects.ShardBefore(c.Request().Context(), p.Job, p.Step, p.Attempt, p.Rank)
	if err != nil {
		return err
	}
	if berth.CheckpointKey(tenant, p.Job, p.Attempt, p.Rank, p.Step)+"/"+berth.ManifestName != p.Manifest {
		return berth.Errorf(berth.CodeInvalid, "manifest %.200q is not the key of this member's part of step %d",
			p.Manifest, p.Step)
	}
	place, err := blob.ParseKey(p.Manifest)
	if err != nil {
		return err
	}
	if err := h.reporter(c, place, db.Session{AgentBoot: p.AgentBoot, Epoch: p.Epoch}); err != nil || known {
		return err
	}
	fault := h.compareShard(c.Request().Context(), p)
	if !berth.IsSlug(fault, wire.SlugObjectMissing) {
		return fault
	}
	// The step may have been pruned during the comparison.
	_, known, err = h.objects.ShardBefore(c.Request().Context(), p.Job, p.Step, p.Attempt, p.Rank)
	if err != nil || known {
		return err
	}
	return fault
}

// reporter checks that a report comes from the machine that holds the member, with the answers of the registration.
// Any error stops the report, so a report without a comparison is not registered.
func (h *agentObjectHandlers) reporter(c echo.Context, place blob.Place, at db.Session) error {
	err := h.authorize(c, place, true, at)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return &berth.Error{Code: berth.CodeConflict, Slug: berth.SlugStaleAttempt,
			Message: fmt.Sprintf("attempt %d of job %s is not this machine's current one", place.Attempt, place.Job)}
	}
	return err
}

// compareShard is verifyShard without the look for an earlier report.
func (h *agentObjectHandlers) compareShard(ctx context.Context, p wire.CheckpointReport) error {
	b, err := h.store.ReadAll(ctx, p.Manifest, maxManifest)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return errMissing("step %d: the object store has no manifest", p.Step)
	}
	if err != nil {
		return err
	}
	sum, err := blob.ParseSHA256(p.SHA256)
	if err != nil {
		return err
	}
	if sha256.Sum256(b) != sum {
		return errMissing("step %d: the manifest in the object store has another sha256 than reported", p.Step)
	}
	var m wire.CheckpointManifest
	if err := json.Unmarshal(b, &m); err != nil {
		return berth.Errorf(berth.CodeInvalid, "step %d: the manifest is not as agents write it", p.Step)
	}
	folder := path.Dir(p.Manifest)
	sizes, err := h.store.Sizes(ctx, folder, blob.MaxManifestFiles)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, f := range m.Files {
		size, ok := sizes[path.Base(f.Object)]
		if !ok || path.Dir(f.Object) != folder || size != f.Bytes {
			return errMissing("step %d: the object store has %d bytes of %.100q, and the manifest says %d", p.Step,
				size, f.Path, f.Bytes)
		}
		total += f.Bytes
	}
	if total != p.Bytes {
		return errMissing("step %d: %d bytes are reported, and the manifest lists %d", p.Step, p.Bytes, total)
	}
	return nil
}
