package api

import (
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/agentbin"
)

// Limits on downloads of agents, whose route is open to all callers. The callers of one address may be many
// machines behind one gateway; refused ones repeat the call. A download that is slower than downloadPart in
// downloadStall, which are 256 KiB/s, ends, so that readers that stand still hold no place.
const (
	downloadsAbreast   = 32
	downloadsOfAddress = 8
	downloadPart       = 2560 << 10       // bytes
	downloadStall      = 10 * time.Second // for each part
	downloadLimit      = 5 * time.Minute  // as install.sh of cloudinit
)

// agentDownloads serves the programs of --agent-binaries to new machines, which have no token yet. A program is
// no secret; a machine compares its hash, so the route needs no caller that is known.
type agentDownloads struct {
	programs  *agentbin.Binaries // nil: none
	addresses addresses
	stall     time.Duration // for each part of a program

	mu  sync.Mutex
	all int
	of  map[netip.Prefix]int // downloads under way; no entry: none
}

func newAgentDownloads(programs *agentbin.Binaries, addresses addresses, stall time.Duration) *agentDownloads {
	return &agentDownloads{programs: programs, addresses: addresses, stall: stall, of: map[netip.Prefix]int{}}
}

func (h *agentDownloads) mount(r *router) {
	r.echo.GET(cloud.AgentPath(":platform", ":sha256"), h.download)
}

// download sends one program. The content of an address never changes, so that caches may keep it.
func (h *agentDownloads) download(c echo.Context) error {
	program, size, ok := h.programs.Find(c.Param("platform"), c.Param("sha256"))
	if !ok {
		return berth.Errorf(berth.CodeNotFound,
			"this server has no agent with this platform and hash (berthd --agent-binaries)")
	}
	from := h.addresses.client(c.Request())
	if err := h.begin(from); err != nil {
		return err
	}
	defer h.end(from)
	w := c.Response()
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	w.WriteHeader(http.StatusOK)
	return h.send(w, program)
}

// downloadPace is the pace that a download must keep.
type downloadPace struct {
	stall time.Duration // for each part
	end   time.Time     // of the whole download
	part  time.Time     // the end of the present part
	sent  int           // bytes of the present part
}

// deadline returns the time until which the next n bytes must be sent. Only a whole part earns more time: single
// bytes do not.
func (p *downloadPace) deadline(now time.Time, n int) time.Time {
	if p.end.IsZero() {
		p.end = now.Add(downloadLimit)
	}
	if p.part.IsZero() || p.sent >= downloadPart {
		p.part, p.sent = now.Add(p.stall), 0
	}
	p.sent += n
	if p.part.After(p.end) {
		return p.end
	}
	return p.part
}

// send writes the program. Each part must be taken within stall, and all of them within downloadLimit.
func (h *agentDownloads) send(w *echo.Response, program io.Reader) error {
	control := http.NewResponseController(w)
	pace := downloadPace{stall: h.stall}
	block := blocks.Get().(*[transferBlock]byte)
	defer blocks.Put(block)
	for {
		n, err := program.Read(block[:])
		if n > 0 {
			_ = control.SetWriteDeadline(pace.deadline(time.Now(), n)) // not every transport has deadlines
			if _, err := w.Write(block[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			_ = control.SetWriteDeadline(time.Time{}) // the connection may carry other calls
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// begin counts a download, or refuses it.
func (h *agentDownloads) begin(from netip.Prefix) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all >= downloadsAbreast {
		return limited(time.Second, "%d machines download the agent, which is the limit", downloadsAbreast)
	}
	if h.of[from] >= downloadsOfAddress {
		return limited(time.Second, "%d machines of this address download the agent, which is the limit",
			downloadsOfAddress)
	}
	h.all++
	h.of[from]++
	return nil
}

// end counts the end of a download.
func (h *agentDownloads) end(from netip.Prefix) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all--
	if h.of[from]--; h.of[from] == 0 {
		delete(h.of, from)
	}
}
