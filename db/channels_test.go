package db_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// channel creates a chat channel with a secret.
func (s *stage) channel(tenant berth.TenantID, name string, events ...string) {
	s.t.Helper()
	secret := db.SealedSecret{Tenant: tenant, Name: "CHAT", Key: "k", Sealed: []byte("x")}
	if _, _, err := s.db.Secrets.Set(s.t.Context(), secret); err != nil {
		s.t.Fatal(err)
	}
	c := spec.Channel{Kind: spec.ChannelSlack, Secret: "CHAT", Events: events}
	if _, err := s.db.Channels.Set(s.t.Context(), tenant, name, c, "user:test"); err != nil {
		s.t.Fatal(err)
	}
}

// toChannels lists the notifications that wait, as TENANT/CHANNEL TYPE, in order.
func (s *stage) toChannels() []string {
	s.t.Helper()
	return one[[]string](s, `SELECT coalesce(array_agg(c.tenant || '/' || c.name || ' ' || n.type ORDER BY n.id, c.tenant), '{}')
		FROM notifications n LEFT JOIN channels c ON c.id = n.channel`)
}

func (s *stage) under(parent, child berth.TenantID) {
	s.t.Helper()
	if err := s.db.Tenants.Create(s.t.Context(), spec.NewTenant{ID: parent}); err != nil {
		s.t.Fatal(err)
	}
	if err := s.db.Tenants.Update(s.t.Context(), child, spec.TenantPatch{Parent: &parent}); err != nil {
		s.t.Fatal(err)
	}
}

// claimMessages claims up to 16 channels.
func (s *stage) claimMessages(edit func(*db.ChannelClaim)) []db.ChannelMessage {
	s.t.Helper()
	c := db.ChannelClaim{Each: 4, Limit: 16, Lease: time.Hour, First: 2, Most: 1000}
	if edit != nil {
		edit(&c)
	}
	list, err := s.db.Channels.Claim(s.t.Context(), c)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

func (s *stage) testChannel(name string) {
	s.t.Helper()
	if err := s.db.Channels.Test(s.t.Context(), "default", name, "user:test"); err != nil {
		s.t.Fatal(err)
	}
}

func TestChannelsOfTheTenantsAboveGetTheirEvents(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.under("org", "default")
	s.channel("default", "team", "job.succeeded")
	s.channel("default", "named")
	s.channel("org", "all", "job.succeeded", "job.failed", "spend.warn")
	s.channel("org", "named") // hidden by the tenant's own channel of the same name
	if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	s.channel("other", "team", "job.succeeded", "job.failed")

	id := s.submit(func(j *spec.Job) {
		j.Notify = []spec.Notify{{Channel: "named", On: []string{"running",
			"succeeded"}}}
	})
	s.load(id)
	s.finish(id, 0)
	want := []string{"default/named job.running", "default/named job.succeeded", "default/team job.succeeded",
		"org/all job.succeeded"}
	got := s.toChannels()
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(got))); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	plain := s.submit(nil)
	s.load(plain)
	s.finish(plain, 3)
	if got := s.toChannels(); len(got) != 5 || got[4] != "org/all job.failed" {
		t.Errorf("after a failure: %v", got)
	}
	var n wire.Notification
	body := one[string](s, `SELECT body::text FROM notifications WHERE type = 'job.failed'`)
	if err := json.Unmarshal([]byte(body), &n); err != nil || n.Data.ID != plain || n.Data.WebhookJob.Reason == nil ||
		n.Data.Tenant != "default" {
		t.Errorf("payload %s: %v", body, err)
	}
	mustExec(t, s.pool, `INSERT INTO spend_alerts (tenant, period, level, used, most) VALUES ('default', now(), 'warn', 81000000, 100)`)
	if got := s.toChannels(); len(got) != 6 || got[5] != "org/all spend.warn" {
		t.Errorf("after a limit of spend: %v", got)
	}
}

func TestADeadLetterReachesAChannelOfBothEventsOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "both", "job.failed", "job.dead_letter")
	s.channel("default", "dead", "job.dead_letter")
	id := s.submit(nil)
	s.load(id)
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.run(id)
	mustExec(t, s.pool, `UPDATE jobs SET state = 'failed', dead_letter = true, finished_at = now(), version = version + 1 WHERE id = $1`, id)
	if diff := cmp.Diff([]string{"default/both job.failed", "default/dead job.failed"},
		slices.Sorted(slices.Values(s.toChannels()))); diff != "" {
		t.Errorf("a dead letter (-want +got):\n%s", diff)
	}
}

func TestMachinesNotifyTheChannelsThatChooseThem(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "ops", "machine.lost", "machine.draining", "machine.ready", "gpu.unhealthy")
	s.channel("default", "team", "job.failed")
	machine := one[string](s, `SELECT id FROM machines ORDER BY id LIMIT 1`)
	set := func(state string) {
		mustExec(t, s.pool, `UPDATE machines SET state = $2 WHERE id = $1`, machine, state)
	}
	mustExec(t, s.pool, `UPDATE machines SET state = 'draining', drain_reason = 'new disk' WHERE id = $1`, machine)
	set("ready")
	set("suspect")
	set("ready") // a short silence is no news
	set("suspect")
	set("lost")
	want := []string{"default/ops machine.draining", "default/ops machine.ready", "default/ops machine.lost"}
	if diff := cmp.Diff(want, s.toChannels()); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
	var n wire.Notification
	body := one[string](s, `SELECT body::text FROM notifications WHERE type = 'machine.draining'`)
	if err := json.Unmarshal([]byte(body), &n); err != nil || string(n.Data.Machine) != machine ||
		n.Data.Detail != "new disk" {
		t.Errorf("payload %s: %v", body, err)
	}
}

func TestAMessageKeepsItsNotificationsUntilItIsDelivered(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "team")
	for range 3 {
		s.testChannel("team")
	}
	first := s.claimMessages(nil)
	if len(first) != 1 || first[0].Total != 3 || len(first[0].First) != 2 || first[0].Tries != 1 ||
		!cmp.Equal(first[0].Counts, []db.TypeCount{{Type: spec.EventTest, N: 3}}) {
		t.Fatalf("message is %+v", first)
	}
	s.testChannel("team") // part of the next message
	if again := s.claimMessages(nil); len(again) != 0 {
		t.Errorf("claimed twice: %+v", again)
	}
	if err := s.db.Channels.Failed(t.Context(), first[0], "it answered 500", 0); err != nil {
		t.Fatal(err)
	}
	c, err := s.db.Channels.Get(t.Context(), "default", "team")
	if err != nil || c.Error != "it answered 500" || c.FailingSince == nil || c.Waiting != 4 {
		t.Errorf("%+v, %v", c, err)
	}
	second := s.claimMessages(nil)
	if len(second) != 1 || second[0].Total != 3 || second[0].Batch != first[0].Batch || second[0].Tries != 2 {
		t.Fatalf("the repeat is %+v", second)
	}
	if err := s.db.Channels.Delivered(t.Context(), second[0], time.Hour); err != nil {
		t.Fatal(err)
	}
	if rest := s.claimMessages(nil); len(rest) != 0 {
		t.Errorf("a channel at rest is claimed: %+v", rest)
	}
	s.testChannel("team") // a loop of tests must not become a loop of mails
	if rest := s.claimMessages(nil); len(rest) != 0 {
		t.Errorf("a test ends the rest of its channel: %+v", rest)
	}
	mustExec(t, s.pool, `UPDATE channels SET due_at = now()`)
	third := s.claimMessages(nil)
	if len(third) != 1 || third[0].Total != 2 || third[0].Batch == first[0].Batch || third[0].Tries != 1 {
		t.Fatalf("the next message is %+v", third)
	}
}

func TestANotificationOfASlowTransactionIsNotLost(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "team")
	// The slow transaction has a lower number than the notification that is delivered before its commit.
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO notifications (channel, type, body)
		SELECT id, 'job.failed', '{"type": "job.failed"}' FROM channels`); err != nil {
		t.Fatal(err)
	}
	s.testChannel("team")
	m := s.claimMessages(nil)
	if len(m) != 1 || m[0].Total != 1 {
		t.Fatalf("message is %+v", m)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Channels.Delivered(t.Context(), m[0], 0); err != nil {
		t.Fatal(err)
	}
	if m = s.claimMessages(nil); len(m) != 1 || m[0].Counts[0].Type != "job.failed" {
		t.Errorf("the slow one is lost: %+v", m)
	}
}

func TestTheNotificationsOfAChannelAreBounded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "team")
	s.channel("default", "other")
	s.testChannel("other")
	for range 5 {
		s.testChannel("team")
	}
	mustExec(t, s.pool, `UPDATE notifications SET created_at = now() - interval '25 hours' WHERE id IN (SELECT max(id) FROM notifications)`)
	dropped, err := s.db.Channels.Sweep(t.Context(), 24*time.Hour, 3)
	if err != nil || dropped != 3 {
		t.Errorf("%d are dropped, want the one of yesterday and the two above the bound: %v", dropped, err)
	}
	if m := s.claimMessages(nil); len(m) != 2 || m[0].Total+m[1].Total != 3 {
		t.Errorf("the messages are %+v", m)
	}
}

// A channel fails, and its owner changes its destination while the former one is tried.
func TestAChangedChannelStartsOverWithAllThatWaits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "team")
	for range 5 {
		s.testChannel("team")
	}
	old := s.claimMessages(nil)
	c := spec.Channel{Kind: spec.ChannelWebhook, URL: "https://hook.example"}
	s.signs()
	if _, err := s.db.Channels.Set(t.Context(), "default", "team", c, "user:test"); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Channels.Failed(t.Context(), old[0], "the former address", time.Hour); err != nil {
		t.Fatal(err)
	}
	if got, err := s.db.Channels.Get(t.Context(), "default", "team"); err != nil || got.Error != "" ||
		got.Waiting != 5 || got.Tests != 5 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := s.db.Channels.Delivered(t.Context(), old[0], time.Hour); err != nil {
		t.Fatal(err)
	}
	m := s.claimMessages(func(c *db.ChannelClaim) { c.First = 3 })
	if len(m) != 1 || m[0].Total != 3 || len(m[0].First) != 3 || m[0].Tries != 1 {
		t.Fatalf("message is %+v", m)
	}
	// One notification that the receiver refuses does not keep the others back.
	if err := s.db.Channels.Remove(t.Context(), []int64{m[0].First[1].ID, m[0].First[2].ID}); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Channels.Failed(t.Context(), m[0], "it answered 400", 0); err != nil {
		t.Fatal(err)
	}
	again := s.claimMessages(func(c *db.ChannelClaim) { c.First = 3 })
	if len(again) != 1 || again[0].Total != 3 || again[0].First[0] != m[0].First[0] || again[0].Tries != 2 {
		t.Errorf("the next try is %+v", again)
	}
}

func TestAnOlderControlPlaneWritesNoCallOfAChannel(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "team")
	id := s.submit(func(j *spec.Job) {
		j.Notify = []spec.Notify{{Channel: "team", On: []string{spec.NotifyDraining}}}
	})
	// The statement by which the version before announces a drain.
	mustExec(t, s.pool, `INSERT INTO notices (job, seq, hook, tenant, url, status, body)
		SELECT j.id, j.event_seq, h.n - 1, j.tenant, h.hook ->> 'url', 'draining', '{}'
		FROM jobs j JOIN job_specs s ON s.job = j.id
		CROSS JOIN jsonb_array_elements(s.spec -> 'notify') WITH ORDINALITY AS h (hook, n) WHERE j.id = $1`, id)
	if n := one[int](s, `SELECT count(*) FROM notices`); n != 0 {
		t.Errorf("%d calls without a URL", n)
	}
}

func TestMessagesOfManyChannelsAreTakenFairly(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "other"}); err != nil {
		t.Fatal(err)
	}
	s.channel("other", "only")
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		s.channel("default", name)
	}
	mustExec(t, s.pool, `INSERT INTO notifications (channel, type, body) SELECT id, 'channel.test', '{}' FROM channels`)
	count := func(list []db.ChannelMessage) map[berth.TenantID]int {
		got := map[berth.TenantID]int{}
		for _, m := range list {
			got[m.Tenant]++
		}
		return got
	}
	if got := count(s.claimMessages(nil)); !cmp.Equal(got, map[berth.TenantID]int{"default": 4, "other": 1}) {
		t.Errorf("claimed %v", got)
	}
	crowded := func(c *db.ChannelClaim) { c.Crowded = []berth.TenantID{"default"} }
	if got := s.claimMessages(crowded); len(got) != 0 {
		t.Errorf("of a crowded tenant %v", got)
	}
	mustExec(t, s.pool, `UPDATE cluster SET quarantined_at = now()`)
	if got := s.claimMessages(nil); len(got) != 0 {
		t.Errorf("a quarantined cluster sends %v", got)
	}
}

func TestADeletedChannelLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.channel("default", "team")
	s.testChannel("team")
	late := one[int64](s, `SELECT id FROM channels`)
	if err := s.db.Channels.Delete(t.Context(), "default", "team"); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Channels.Delete(t.Context(), "default", "team"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a second deletion: %v", err)
	}
	mustExec(t, s.pool, `INSERT INTO notifications (channel, type, body) VALUES ($1, 'channel.test', '{}')`, late)
	if _, err := s.db.Channels.Sweep(t.Context(), time.Hour, 10); err != nil {
		t.Fatal(err)
	}
	if got := s.toChannels(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestOnlyCallsOfUsersNeedTheirChannels(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.under("org", "default")
	s.channel("org", "all")
	for name, want := range map[string]string{"all": "", "none": "all"} {
		err := s.db.Channels.CheckNames(t.Context(), "default", []spec.Notify{{URL: "https://a.example"},
			{Channel: name}})
		var e *berth.Error
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case want != "" && (!errors.As(err, &e) || e.Code != berth.CodeInvalid ||
			e.Fields[0].Field != "notify[1].channel" || e.Fields[0].Allowed != want):
			t.Errorf("%s: %v", name, err)
		}
		// A schedule whose channel was deleted fires all the same.
		s.submit(func(j *spec.Job) { j.Notify = []spec.Notify{{Channel: name, On: []string{"failed"}}} })
	}
	c := spec.Channel{Kind: spec.ChannelSlack, Secret: "NONE"}
	if _, err := s.db.Channels.Set(t.Context(), "default", "x", c,
		"user:test"); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("a channel without its secret: %v", err)
	}
}

func TestATenantHasABoundedNumberOfChannels(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `INSERT INTO channels (tenant, name, kind, updated_by)
		SELECT 'default', 'c' || g, 'slack', 'x' FROM generate_series(1, $1::int) g`, spec.MaxChannels)
	c := spec.Channel{Kind: spec.ChannelEmail, To: []string{"a@example.com"}}
	if _, err := s.db.Channels.Set(t.Context(), "default", "c1", c, "user:test"); err != nil {
		t.Errorf("a replacement: %v", err)
	}
	if _, err := s.db.Channels.Set(t.Context(), "default", "more", c, "user:test"); !berth.IsSlug(err,
		berth.SlugQuota) {
		t.Errorf("one too many: %v", err)
	}
}
