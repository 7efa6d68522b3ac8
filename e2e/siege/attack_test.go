package siege_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth"
	"berth/e2e/rig"
)

// attackHelper names the helper that attacks.
const attackHelper = "attacker"

// Kinds of attacks.
const (
	tokenless = "calls without a token"
	wrongs    = "wrong machine tokens"
	silent    = "silent POSTs of a viewer"
	joins     = "unfinished joins"
	tails     = "tail=1000000 of 4 KiB lines"
	followers = "followers of one log"
	uploads   = "uploads of a byte a second"
	idles     = "idle connections"
	submits   = "submits of one tenant"
	unread    = "lists that a viewer asks for and does not read"
)

// plan is the configuration of an attacker.
type plan struct {
	Kind    string        `json:"kind"`
	Address string        `json:"address"` // of the API, host:port
	From    string        `json:"from"`    // loopback address that the attacker calls from
	Tokens  []string      `json:"tokens"`  // used in turn
	Job     string        `json:"job"`     // with the log that is read
	Count   int           `json:"count"`   // connections, or calls a second
	Bytes   int           `json:"bytes"`   // of each body
	Body    []byte        `json:"body"`
	For     time.Duration `json:"for"`
}

// damage is the report of an attacker.
type damage struct {
	Sent     int            `json:"sent"`     // requests, or connections without one
	Statuses map[string]int `json:"statuses"` // answers by status
	Dropped  int            `json:"dropped"`  // connections that the server closed without an answer
	Read     int64          `json:"read"`     // bytes
	CPU      time.Duration  `json:"cpu"`
}

// attacker is a helper under way.
type attacker struct {
	plan
	mu     sync.Mutex
	damage damage
}

// attack is the helper.
func attack(ctx context.Context, config json.RawMessage) (any, error) {
	a := &attacker{damage: damage{Statuses: map[string]int{}}}
	if err := json.Unmarshal(config, &a.plan); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.For)
	defer cancel()
	switch a.Kind {
	case tokenless:
		a.callSteadily(ctx, func() string { return "GET /v1/jobs HTTP/1.1\r\nHost: siege\r\n\r\n" })
	case wrongs:
		a.callSteadily(ctx, func() string { // each has the form of a token, so it must be looked up
			return fmt.Sprintf("POST /agent/v1/sync HTTP/1.1\r\nHost: siege\r\nAuthorization: Bearer berth_%s_%s\r\nContent-Length: 2\r\n\r\n{}", berth.NewSecret()[:12], berth.NewSecret())
		})
	case silent:
		a.holdMany(ctx, func(i int) string {
			return fmt.Sprintf("POST /v1/plans HTTP/1.1\r\nHost: siege\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", a.token(i), a.Bytes)
		}, nil)
	case joins:
		a.holdMany(ctx, func(int) string {
			return fmt.Sprintf("POST /agent/v1/join HTTP/1.1\r\nHost: siege\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"token\":\"", a.Bytes+100)
		}, a.sendBody)
	case tails:
		a.holdMany(ctx, func(i int) string { return a.readLog(i, "tail=1000000") }, nil)
	case followers:
		a.holdMany(ctx, func(i int) string { return a.readLog(i, "follow=true") }, nil)
	case uploads:
		a.holdMany(ctx, func(i int) string {
			return fmt.Sprintf("POST /v1/uploads?address=sha256:%x HTTP/1.1\r\nHost: siege\r\nAuthorization: Bearer %s\r\nContent-Type: application/zstd\r\nContent-Length: %d\r\n\r\n", sha256.Sum256([]byte(strconv.Itoa(i))), a.token(i), a.Bytes)
		}, drip)
	case idles:
		a.holdMany(ctx, func(int) string { return "" }, nil)
	case submits:
		a.flood(ctx)
	case unread:
		a.readNothing(ctx)
	default:
		return nil, fmt.Errorf("attack %q is not known", a.Kind)
	}
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return nil, err
	}
	a.damage.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return a.damage, nil
}

func (a *attacker) token(i int) string { return a.Tokens[i%len(a.Tokens)] }

func (a *attacker) readLog(i int, query string) string {
	return fmt.Sprintf("GET /v1/jobs/%s/logs?%s HTTP/1.1\r\nHost: siege\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n", a.Job, query, a.token(i))
}

func (a *attacker) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(a.From)}}
	return d.DialContext(ctx, "tcp", a.Address)
}

func (a *attacker) count(f func(*damage)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(&a.damage)
}

// answered records the status line of an answer.
func (a *attacker) answered(line string) {
	_, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	a.count(func(d *damage) { d.Statuses[code]++ })
}

// callSteadily sends one request Count times a second, each on a connection of its own: an
// attacker need not keep connections.
func (a *attacker) callSteadily(ctx context.Context, request func() string) {
	var all sync.WaitGroup
	defer all.Wait()
	began := time.Now()
	for i := 0; rig.SleepUntil(ctx, began.Add(time.Duration(i)*time.Second/time.Duration(a.Count))); i++ {
		all.Go(func() {
			c, err := a.dial(ctx)
			if err != nil {
				a.count(func(d *damage) { d.Dropped++ })
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.WriteString(c, request())
			a.count(func(d *damage) { d.Sent++ })
			if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
				a.answered(line)
			} else {
				a.count(func(d *damage) { d.Dropped++ })
			}
		})
	}
}

// again is the pause before a connection that the server closed is opened again.
const again = time.Second

// holdMany holds Count connections open, each with a request that takes for
// ever, and opens those again that the server closes.
func (a *attacker) holdMany(ctx context.Context, request func(i int) string, body func(ctx context.Context, c net.Conn)) {
	var all sync.WaitGroup
	for i := range a.Count {
		all.Go(func() {
			for ctx.Err() == nil {
				a.hold(ctx, request(i), body)
				rig.SleepUntil(ctx, time.Now().Add(again))
			}
		})
	}
	all.Wait()
}

// hold makes one request, sends its body slowly or not at all, and reads the
// answer until the server or the attack ends.
func (a *attacker) hold(ctx context.Context, request string, body func(ctx context.Context, c net.Conn)) {
	c, err := a.dial(ctx)
	if err != nil {
		if ctx.Err() == nil {
			a.count(func(d *damage) { d.Dropped++ })
		}
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := io.WriteString(c, request); err != nil {
		return
	}
	a.count(func(d *damage) { d.Sent++ })
	var sending sync.WaitGroup
	defer sending.Wait()
	if body != nil {
		sending.Go(func() { body(ctx, c) })
	}
	in := bufio.NewReaderSize(c, 4<<10)
	line, err := in.ReadString('\n')
	if err != nil {
		if ctx.Err() == nil {
			a.count(func(d *damage) { d.Dropped++ })
		}
		return
	}
	a.answered(line)
	a.readSlowly(ctx, in)
	c.Close() // ends a body that is still sent
}

// readNothing holds Count connections that ask for lists again and again, and reads
// none of the answers. Connections that the server closes are opened again.
func (a *attacker) readNothing(ctx context.Context) {
	var all sync.WaitGroup
	for i := range a.Count {
		all.Go(func() {
			for ctx.Err() == nil {
				a.askOn(ctx, i)
				rig.SleepUntil(ctx, time.Now().Add(again))
			}
		})
	}
	all.Wait()
}

// askOn sends requests until the server closes the connection.
func (a *attacker) askOn(ctx context.Context, i int) {
	c, err := a.dial(ctx)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.(*net.TCPConn).SetReadBuffer(4 << 10)
	request := fmt.Sprintf("GET /v1/jobs?limit=1000 HTTP/1.1\r\nHost: siege\r\nAuthorization: Bearer %s\r\n\r\n", a.token(i))
	for {
		if _, err := io.WriteString(c, request); err != nil {
			if ctx.Err() == nil {
				a.count(func(d *damage) { d.Dropped++ })
			}
			return
		}
		a.count(func(d *damage) { d.Sent++ })
	}
}

// A reader takes readPart bytes, then waits for readPause.
const (
	readPart  = 256 << 10
	readPause = 100 * time.Millisecond
)

// readSlowly reads until the end of the connection, or for a few seconds after
// an answer that is over: the server may keep the connection open.
func (a *attacker) readSlowly(ctx context.Context, in io.Reader) {
	for ctx.Err() == nil {
		n, err := io.CopyN(io.Discard, in, readPart)
		a.count(func(d *damage) { d.Read += n })
		if err != nil {
			return
		}
		rig.SleepUntil(ctx, time.Now().Add(readPause))
	}
}

// sendBody sends Bytes bytes and then nothing.
func (a *attacker) sendBody(ctx context.Context, c net.Conn) {
	block := bytes.Repeat([]byte("x"), 64<<10)
	for sent := 0; sent < a.Bytes && ctx.Err() == nil; sent += len(block) {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

// drip sends a byte a second.
func drip(ctx context.Context, c net.Conn) {
	for rig.SleepUntil(ctx, time.Now().Add(time.Second)) {
		if _, err := c.Write([]byte{0x28}); err != nil {
			return
		}
	}
}

// floodConns is how many connections a flood uses; each carries many requests
// at once, so that making them costs next to nothing.
const floodConns = 64

// flood sends Count submits a second.
func (a *attacker) flood(ctx context.Context) {
	var all sync.WaitGroup
	for i := range floodConns {
		all.Go(func() {
			for ctx.Err() == nil {
				a.floodOne(ctx, i)
				rig.SleepUntil(ctx, time.Now().Add(again/4))
			}
		})
	}
	all.Wait()
}

func (a *attacker) floodOne(ctx context.Context, i int) {
	c, err := a.dial(ctx)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	request := fmt.Appendf(nil, "POST /v1/jobs HTTP/1.1\r\nHost: siege\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", a.token(i), len(a.Body), a.Body)
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		in := bufio.NewScanner(c)
		in.Buffer(make([]byte, 64<<10), 1<<20)
		for in.Scan() {
			if line := in.Text(); strings.HasPrefix(line, "HTTP/1.1 ") {
				a.answered(line)
			}
		}
		c.Close()
	})
	const tick = 20 * time.Millisecond
	each := max(1, a.Count*int(tick)/int(time.Second)/floodConns)
	pause := time.Duration(each*floodConns) * time.Second / time.Duration(a.Count)
	batch := bytes.Repeat(request, each)
	for began, n := time.Now(), 0; rig.SleepUntil(ctx, began.Add(time.Duration(n)*pause)); n++ {
		_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
		if _, err := c.Write(batch); err != nil {
			return
		}
		a.count(func(d *damage) { d.Sent += each })
	}
}

// startAttack starts an attacker in a process of its own.
func startAttack(p plan, share float64) (*rig.Helper, error) {
	return rig.StartHelper(attackHelper, share, p)
}
