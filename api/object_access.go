package api

import (
	"context"
	"net/http"
	"path"
	"strings"

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
			"signed (addresses of objects and parts), server (through this process), fallback (through this " +
			"process, since a machine could not use a signed address).",
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

// objectAccess answers which objects machines move by signed addresses: none while signatures fail, so that machines
// read no file twice in vain.
func (h *agentObjectHandlers) objectAccess(c echo.Context) error {
	a := wire.ObjectAccess{Chunks: h.shares && h.store != nil}
	ctx := context.WithoutCancel(c.Request().Context())
	if h.signs() && h.signing.holds(ctx, h.store) && !h.signing.pauses() {
		a.Direct, a.MinBytes, a.MaxBytes = true, minSigned, blob.MaxSigned
		if h.signing.inParts(ctx, h.store) {
			a.PartsAbove, a.PartBytes, a.MaxInParts = h.parts.Above, h.parts.Bytes, maxObject
		}
	}
	return c.JSON(http.StatusOK, a)
}

// agentAddress signs an address of an object for a machine that may read or write the object now, by the rules of
// agentGetObject and agentPutObject. An address to write is signed only for objects that the job declares.
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
	output, ok := signable(place)
	if !h.signs() || !ok || !h.signing.holds(context.WithoutCancel(ctx), h.store) {
		return c.JSON(http.StatusOK, wire.ObjectAddress{})
	}
	if !write {
		return h.answerSigned(c, "get", func(ctx context.Context) (blob.SignedAddress, error) {
			return h.store.SignGet(ctx, req.Key, blob.AddressLife)
		})
	}
	declared, err := h.objects.Declares(ctx, place.Job, output)
	if err != nil {
		return err
	}
	if !declared {
		return c.JSON(http.StatusOK, wire.ObjectAddress{})
	}
	sum, err := blob.ParseSHA256(req.SHA256)
	if err != nil {
		return err
	}
	w := objectWrite{agentObjectHandlers: h, c: c, req: req, place: place, at: at, sum: sum}
	if req.PartBytes > 0 {
		return w.inParts()
	}
	return w.whole()
}

// answerSigned answers a call with the address that a function signs. While signatures fail, it answers that the object
// goes through this server.
func (h *agentObjectHandlers) answerSigned(
	c echo.Context, method string, try func(context.Context) (blob.SignedAddress, error),
) error {
	a, ok, err := h.signing.sign(c.Request().Context(), try)
	if err != nil {
		return err
	}
	if !ok {
		return c.JSON(http.StatusOK, wire.ObjectAddress{})
	}
	h.transfers.WithLabelValues(method, waySigned).Inc()
	c.Response().Header().Set(echo.HeaderCacheControl, "no-store")
	return c.JSON(http.StatusOK, wire.ObjectAddress{URL: a.URL, Header: a.Header, Until: a.Until})
}

// objectWrite is an authorized call for an address to write.
type objectWrite struct {
	*agentObjectHandlers
	c     echo.Context
	req   wire.AddressRequest
	place blob.Place
	at    db.Session
	sum   [32]byte // of the content, or of the parts' sums
}

// whole signs the address of an object that is stored by one request, or compares the object in the store.
func (w *objectWrite) whole() error {
	ctx := w.c.Request().Context()
	if w.req.Exists {
		found, err := w.found(ctx, func(o blob.ObjectInfo) bool { return o.Is(w.req.Bytes, w.sum) })
		if err != nil {
			return err
		}
		return w.c.JSON(http.StatusOK, wire.ObjectAddress{Stored: found == wire.FoundSame, Found: found})
	}
	if err := w.storeWithin(w.c, w.req.Key, w.place, max(w.req.Bytes, w.req.Rest), w.at); err != nil {
		return err
	}
	return w.answerSigned(w.c, "put", func(ctx context.Context) (blob.SignedAddress, error) {
		return w.store.SignPut(ctx, w.req.Key, w.req.Bytes, w.sum, blob.AddressLife)
	})
}

// found compares the object in the store with the announced one.
func (w *objectWrite) found(ctx context.Context, same func(blob.ObjectInfo) bool) (wire.Found, error) {
	o, err := w.store.Info(ctx, w.req.Key)
	switch {
	case berth.CodeOf(err) == berth.CodeNotFound:
		return wire.FoundNone, nil
	case err != nil:
		return "", err
	case same(o):
		return wire.FoundSame, nil
	case o.Bytes == w.req.Bytes && o.SHA256 == nil:
		return wire.FoundUnknown, nil
	}
	return wire.FoundOther, nil
}

// signable reports whether objects at a place are written once and swept when no row names them: the files of
// checkpoints, and outputs, whose name it returns. This server reads manifests itself, and other objects are replaced
// again and again.
func signable(p blob.Place) (output string, ok bool) {
	if _, ok := stepOf(p); ok {
		return "", strings.Count(p.Path, "/") == 2 && path.Base(p.Path) != berth.ManifestName
	}
	name, ok := strings.CutPrefix(p.Path, db.StoredOutputs+"/")
	output, archive := strings.CutSuffix(name, berth.OutputSuffix)
	return output, ok && archive && output != "" && !strings.Contains(output, "/")
}
