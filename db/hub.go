package db

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
)

// A Topic is what a hint is about.
type Topic string

// The topics. Keys are job ids, machine ids, or "" where there is one of them.
const (
	TopicQueue     Topic = "queue"     // something the leader plans on has changed
	TopicJob       Topic = "job"       // key: job id; its row, events or logs have changed
	TopicMachine   Topic = "machine"   // key: machine id; its orders have changed
	TopicSubmit    Topic = "submit"    // key: job id; a new row wants its workflow
	TopicClock     Topic = "clock"     // key: schedule id; its clock is to be set, or it has a fire that is due
	TopicPoke      Topic = "poke"      // key: job id; its workflow should look. Who changed the row pokes
	TopicAdmission Topic = "admission" // key: none; new work was paused or resumed
	TopicEnd       Topic = "end"       // key: allocation id; its end is stored and sealed
)

// Hub carries hints: "look again at this". Hints carry no truth; they may be
// lost, doubled or late, so every listener also looks by itself from time to
// time. In one process a hint arrives at once; other processes get it by
// NOTIFY, sent from a statement of its own (never inside a transaction, where
// it takes a global lock) and coalesced: the first at once, then at most one
// statement each hintPause. The zero value delivers within the process only.
type Hub struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	self string // this process, whose own notifications are ignored

	mu      sync.Mutex
	subs    map[hint]map[*Subscription]struct{}
	pending map[hint]struct{}
	wake    chan struct{}

	hinted map[berth.MachineID]int64 // hints about each machine
	gaps   int64                     // times in which hints may have been missed
}

type hint struct {
	topic Topic
	key   string
}

const (
	hintChannel  = "berth"
	hintPause    = 100 * time.Millisecond
	maxHintBytes = 7000 // NOTIFY payloads end at 8000
)

func newHub(pool *pgxpool.Pool, log *slog.Logger) *Hub {
	return &Hub{
		pool: pool, log: log, self: berth.NewSecret()[:8],
		subs:    map[hint]map[*Subscription]struct{}{},
		pending: map[hint]struct{}{},
		wake:    make(chan struct{}, 1),
		hinted:  map[berth.MachineID]int64{},
	}
}

// Subscription receives hints about one key, or about all keys of a topic.
type Subscription struct {
	// C has room for one hint: it says that something happened since the last
	// receive, not how often.
	C chan struct{}

	hub  *Hub
	hint hint
	from Origin
	keys map[string]struct{} // for subscriptions to all keys
}

// Origin is where a hint comes from.
type Origin int

// The origins a subscription may listen to.
const (
	Anywhere  Origin = iota
	Here             // this process
	Elsewhere        // other processes
)

// Subscribe listens to one key of a topic; key "*" means every key. Close it.
func (h *Hub) Subscribe(topic Topic, key string) *Subscription {
	return h.SubscribeFrom(topic, key, Anywhere)
}

// SubscribeFrom is Subscribe for hints of one origin only.
func (h *Hub) SubscribeFrom(topic Topic, key string, from Origin) *Subscription {
	s := &Subscription{C: make(chan struct{}, 1), hub: h, hint: hint{topic, key}, from: from}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = map[hint]map[*Subscription]struct{}{}
	}
	if h.subs[s.hint] == nil {
		h.subs[s.hint] = map[*Subscription]struct{}{}
	}
	h.subs[s.hint][s] = struct{}{}
	return s
}

// Keys returns the keys hinted at since the last call, for subscriptions to
// every key of a topic.
func (s *Subscription) Keys() []string {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	keys := make([]string, 0, len(s.keys))
	for k := range s.keys {
		keys = append(keys, k)
	}
	clear(s.keys)
	return keys
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subs[s.hint], s)
	if len(s.hub.subs[s.hint]) == 0 {
		delete(s.hub.subs, s.hint)
	}
}

// Publish hints at keys of a topic, here and in every other process. Call it
// after the commit, never inside a transaction.
func (h *Hub) Publish(topic Topic, keys ...string) {
	h.mu.Lock()
	for _, k := range keys {
		h.deliver(hint{topic, k}, Here)
		if h.pending != nil {
			h.pending[hint{topic, k}] = struct{}{}
		}
	}
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// deliver wakes the subscribers of a hint; h.mu is held.
func (h *Hub) deliver(x hint, from Origin) {
	if x.topic == TopicMachine {
		h.hinted[berth.MachineID(x.key)]++
	}
	for s := range h.subs[x] {
		if s.from == Anywhere || s.from == from {
			s.poke("")
		}
	}
	for s := range h.subs[hint{x.topic, "*"}] {
		if s.from == Anywhere || s.from == from {
			s.poke(x.key)
		}
	}
}

func (s *Subscription) poke(key string) {
	if s.hint.key == "*" {
		if s.keys == nil {
			s.keys = map[string]struct{}{}
		}
		s.keys[key] = struct{}{}
	}
	select {
	case s.C <- struct{}{}:
	default:
	}
}

// Run sends and receives hints until ctx ends. Without it hints stay within
// the process.
func (h *Hub) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { h.send(ctx) })
	wg.Go(func() { h.listen(ctx) })
	wg.Wait()
	return ctx.Err()
}

func (h *Hub) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		if err := h.flush(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("hints not sent", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(hintPause):
		}
	}
}

// flush notifies the other processes of everything pending. What cannot be
// sent is dropped: it was a hint.
func (h *Hub) flush(ctx context.Context) error {
	h.mu.Lock()
	byTopic := map[Topic][]string{}
	var payloads []string
	for x := range h.pending {
		byTopic[x.topic] = append(byTopic[x.topic], x.key)
	}
	clear(h.pending)
	h.mu.Unlock()
	for topic, keys := range byTopic {
		for len(keys) > 0 {
			n, size := 0, 0
			for n < len(keys) && size < maxHintBytes {
				size += len(keys[n]) + 1
				n++
			}
			payload := h.self + " " + string(topic) + " " + strings.Join(keys[:n], ",")
			payloads = append(payloads, payload)
			keys = keys[n:]
		}
	}
	if len(payloads) == 0 {
		return nil
	}
	// One statement for all topics: each commit of a NOTIFY takes a lock of the
	// whole cluster, and wakes every listener.
	_, err := h.pool.Exec(ctx, `SELECT pg_notify($1, x) FROM unnest($2::text[]) AS x`, hintChannel, payloads)
	return err
}

// listen keeps one connection of its own, and after a break wakes everybody:
// hints may have been missed.
func (h *Hub) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		h.log.Warn("hints not received", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		h.wakeAll()
	}
}

func (h *Hub) receive(ctx context.Context) error {
	cfg := h.pool.Config().ConnConfig.Copy()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "LISTEN "+hintChannel); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		part := strings.SplitN(n.Payload, " ", 3)
		if len(part) != 3 || part[0] == h.self {
			continue
		}
		h.mu.Lock()
		for k := range strings.SplitSeq(part[2], ",") {
			h.deliver(hint{Topic(part[1]), k}, Elsewhere)
		}
		h.mu.Unlock()
	}
}

// Generation numbers the hints about a machine's orders: while it stays the same,
// this process has heard of no change and has missed no hint that it knows of.
func (h *Hub) Generation(m berth.MachineID) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gaps + h.hinted[m]
}

func (h *Hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gaps++
	for _, subs := range h.subs {
		for s := range subs {
			s.poke("")
		}
	}
}
