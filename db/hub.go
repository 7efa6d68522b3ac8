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

// Topic is the subject of a hint.
type Topic string

// The topics. Keys are job ids, machine ids, or "" where there is one of them.
const (
	TopicQueue     Topic = "queue"     // the input of the leader's plan has changed
	TopicJob       Topic = "job"       // key: job id; its row, events or logs have changed
	TopicMachine   Topic = "machine"   // key: machine id; its orders have changed
	TopicSubmit    Topic = "submit"    // key: job id; a new row needs its workflow
	TopicClock     Topic = "clock"     // key: schedule id; Temporal's schedule must be updated, or a fire is due
	TopicPoke      Topic = "poke"      // key: job id; its workflow must read the row; the writer's process signals it
	TopicAdmission Topic = "admission" // key: none; new work was paused or resumed
	TopicLaunch    Topic = "launch"    // key: machine id; the workflow of its launch must read the row
	TopicEnd       Topic = "end"       // key: allocation id; its end is stored and sealed

	TopicUnfinished Topic = "unfinished" // key: see unfinishedKey; the unfinished line of a member has changed
)

// Hub carries hints: "read this again". A hint may be lost, doubled or late and carries no
// data, so every subscriber also reads the rows periodically. Inside one process a hint
// arrives at once; other processes receive it by NOTIFY. NOTIFY is sent in a statement of its
// own, never inside a transaction, where it takes a global lock. It is coalesced: the first
// hint goes out at once, then at most one statement per hintPause.
//
// The zero value delivers within the process only, all topics but TopicMachine. All methods
// may be called concurrently.
type Hub struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	self string // random id of this process; its own notifications are ignored

	mu      sync.Mutex
	subs    map[hint]map[*Subscription]struct{} // subscribers by topic and key
	pending map[hint]struct{}                   // to be sent to other processes; nil: none are
	wake    chan struct{}                       // holds one: pending is not empty

	hinted map[berth.MachineID]int64 // number of hints by machine, for Generation
	gaps   int64                     // interruptions in which hints may have been missed
}

// hint is one topic and key; the key "*" is used by subscriptions only.
type hint struct {
	topic Topic
	key   string
}

const (
	hintChannel  = "berth"
	hintPause    = 100 * time.Millisecond
	maxHintBytes = 7000 // the limit of a NOTIFY payload is 8000
)

// newHub returns a Hub that also sends to other processes, once Run runs.
func newHub(pool *pgxpool.Pool, log *slog.Logger) *Hub {
	return &Hub{
		pool: pool, log: log, self: berth.NewSecret()[:8],
		subs:    map[hint]map[*Subscription]struct{}{},
		pending: map[hint]struct{}{},
		wake:    make(chan struct{}, 1),
		hinted:  map[berth.MachineID]int64{},
	}
}

// Subscription receives hints about one key, or about all keys of a topic. Close it.
type Subscription struct {
	// C holds at most one hint: it reports that something happened since the last receive,
	// not how often.
	C chan struct{}

	hub  *Hub
	hint hint
	from Origin
	keys map[string]struct{} // keys since the last call of Keys, for subscriptions to all keys
}

// Origin is the process that a hint comes from.
type Origin int

// The origins a subscription may listen to.
const (
	Anywhere  Origin = iota
	Here             // this process
	Elsewhere        // other processes
)

// Subscribe listens to one key of a topic; key "*" means every key. The caller must Close the
// subscription.
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

// Keys returns the keys of the hints since the last call, for a subscription to every key of
// a topic. The key "" after an interruption means that any key may have been missed.
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

// Publish sends hints about keys of a topic to this process and every other one. Call it
// after the commit, never inside a transaction: a subscriber that reads earlier would miss
// the change.
func (h *Hub) Publish(topic Topic, keys ...string) {
	h.mu.Lock()
	for _, k := range keys {
		h.deliver(hint{topic, k}, Here)
		// Coalescing: the same hint twice before a flush is sent once.
		if h.pending != nil {
			h.pending[hint{topic, k}] = struct{}{}
		}
	}
	h.mu.Unlock()
	select {
	// The channel has room for one; a full one has the same effect.
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

// poke records the key and wakes the subscriber, without ever blocking; hub.mu is held.
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

// send flushes pending hints until ctx ends, at most once per hintPause.
func (h *Hub) send(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		}
		if err := h.flush(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("cannot send hints", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(hintPause):
		}
	}
}

// flush notifies the other processes of all pending hints. Hints that cannot be sent are
// dropped: subscribers do not depend on them.
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
	// One statement for all topics: each commit of a NOTIFY takes a lock of the whole
	// database cluster, and wakes every listener.
	_, err := h.pool.Exec(ctx, `SELECT pg_notify($1, x) FROM unnest($2::text[]) AS x`, hintChannel, payloads)
	return err
}

// listen receives on a connection of its own until ctx ends. After an interruption it wakes
// every subscriber, since hints may have been missed.
func (h *Hub) listen(ctx context.Context) {
	for ctx.Err() == nil {
		err := h.receive(ctx)
		if ctx.Err() != nil {
			return
		}
		h.log.Warn("cannot receive hints", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		h.wakeAll()
	}
}

// receive delivers the notifications of other processes until the connection fails.
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

// Generation returns a number that grows with each hint about a machine's orders, and with
// each interruption. While it stays the same, this process has received no hint about the
// machine and knows of none that it missed.
func (h *Hub) Generation(m berth.MachineID) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gaps + h.hinted[m]
}

// wakeAll wakes all subscribers after an interruption; the key "" stands for all keys.
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
