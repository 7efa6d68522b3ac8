package db

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
)

// Kinds of stored data. Secrets are counted, the others measured in bytes.
const (
	StoredUploads     = "uploads"
	StoredLogs        = "logs"
	StoredOutputs     = "outputs"
	StoredCheckpoints = "checkpoints"
	StoredSecrets     = "secrets"

	// StoredTotal limits all kinds that are measured in bytes, together.
	StoredTotal = "total"
)

// StorageLimit is one limit of a storage quota. It binds its tenant and all tenants
// below it, together.
type StorageLimit struct {
	Tenant berth.TenantID `json:"tenant"`
	Kind   string         `json:"kind"`
	Most   int64          `json:"most"` // bytes, or a number of secrets
}

// Binds reports whether the limit applies to this kind of data.
func (l StorageLimit) Binds(kind string) bool {
	return l.Kind == kind || l.Kind == StoredTotal && kind != StoredSecrets
}

// Binding returns the limits that apply to this kind of data.
func Binding(limits []StorageLimit, kind string) []StorageLimit {
	var list []StorageLimit
	for _, l := range limits {
		if l.Binds(kind) {
			list = append(list, l)
		}
	}
	return list
}

// LimitsOf returns the limits that a tenant's own quota sets.
func LimitsOf(q spec.Quota) []StorageLimit {
	var list []StorageLimit
	for kind, most := range storageDocument(q.Storage) {
		list = append(list, StorageLimit{Tenant: q.Tenant, Kind: kind, Most: most})
	}
	return list
}

// storageDocument is a storage quota as the column tenants.storage holds it: bytes
// by kind. It is nil without a limit.
func storageDocument(l *spec.StorageLimits) map[string]int64 {
	if l == nil || *l == (spec.StorageLimits{}) {
		return nil
	}
	m := map[string]int64{}
	for kind, most := range map[string]*spec.MiB{
		StoredUploads: l.Uploads, StoredLogs: l.Logs, StoredOutputs: l.Outputs,
		StoredCheckpoints: l.Checkpoints, StoredTotal: l.Total,
	} {
		if most != nil {
			m[kind] = int64(*most) << 20
		}
	}
	if l.Secrets != nil {
		m[StoredSecrets] = int64(*l.Secrets)
	}
	return m
}

// storageLimits is the inverse of storageDocument.
func storageLimits(document map[string]int64) *spec.StorageLimits {
	if len(document) == 0 {
		return nil
	}
	l := &spec.StorageLimits{}
	for kind, field := range map[string]**spec.MiB{
		StoredUploads: &l.Uploads, StoredLogs: &l.Logs, StoredOutputs: &l.Outputs,
		StoredCheckpoints: &l.Checkpoints, StoredTotal: &l.Total,
	} {
		if most, ok := document[kind]; ok {
			*field = new(spec.MiB(most >> 20))
		}
	}
	if n, ok := document[StoredSecrets]; ok {
		l.Secrets = new(int(n))
	}
	return l
}

// readStored sums stored data by kind over each of the tenants and those below it.
const readStored = `
	WITH RECURSIVE below (root, id) AS (
		SELECT x, x
		FROM unnest(@tenants::text[]) x
		UNION
		SELECT b.root, t.id
		FROM below b
		JOIN tenants t ON t.parent = b.id
	), counted AS (
		SELECT tenant, kind, amount FROM tenant_storage
		UNION ALL
		SELECT tenant, kind, amount FROM storage_changes
	)
	SELECT b.root, c.kind, sum(c.amount)::bigint
	FROM below b
	JOIN counted c ON c.tenant = b.id
	GROUP BY b.root, c.kind`

// storedBelow returns stored data by tenant and kind, each with all tenants below it.
func storedBelow(ctx context.Context, q querier, tenants []string) (map[berth.TenantID]*spec.Stored, error) {
	stored := make(map[berth.TenantID]*spec.Stored, len(tenants))
	for _, t := range tenants {
		stored[berth.TenantID(t)] = &spec.Stored{}
	}
	rows, err := q.Query(ctx, readStored, pgx.NamedArgs{"tenants": tenants})
	if err != nil {
		return nil, err
	}
	var tenant berth.TenantID
	var kind string
	var amount int64
	_, err = pgx.ForEachRow(rows, []any{&tenant, &kind, &amount}, func() error {
		addStored(stored[tenant], kind, amount)
		return nil
	})
	return stored, err
}

func addStored(s *spec.Stored, kind string, amount int64) {
	switch kind {
	case StoredUploads:
		s.Uploads += amount
	case StoredLogs:
		s.Logs += amount
	case StoredOutputs:
		s.Outputs += amount
	case StoredCheckpoints:
		s.Checkpoints += amount
	case StoredSecrets:
		s.Secrets += amount
		return
	}
	s.Total += amount
}

// storedOf is the amount of stored data that a limit of this kind is compared with.
func storedOf(s spec.Stored, kind string) int64 {
	switch kind {
	case StoredUploads:
		return s.Uploads
	case StoredLogs:
		return s.Logs
	case StoredOutputs:
		return s.Outputs
	case StoredCheckpoints:
		return s.Checkpoints
	case StoredSecrets:
		return s.Secrets
	default:
		return s.Total
	}
}

// lockStorage makes the transactions that add this kind of data under the same
// limits take turns, until this one ends: each then sees the rows of the one
// before. The lock comes after the rows of jobs and before all rows that count.
// Without a binding limit it does nothing.
func lockStorage(ctx context.Context, tx pgx.Tx, limits []StorageLimit, kind string) error {
	var tenants []string
	for _, l := range Binding(limits, kind) {
		tenants = append(tenants, string(l.Tenant))
	}
	if len(tenants) == 0 {
		return nil
	}
	slices.Sort(tenants)
	_, err := tx.Exec(ctx, `
		SELECT pg_advisory_xact_lock(hashtextextended('storage/' || x.tenant, 0))
		FROM unnest(@tenants::text[]) WITH ORDINALITY x (tenant, n)
		ORDER BY x.n`, pgx.NamedArgs{"tenants": slices.Compact(tenants)})
	return err
}

// checkStorage refuses, with slug storage_quota, amount bytes more of this kind where a
// limit has no room for them. A transaction that has inserted its rows already
// passes them as included, for the text of the refusal alone.
func checkStorage(ctx context.Context, q querier, limits []StorageLimit, kind string, amount, included int64) error {
	room, tight, used, err := storageRoom(ctx, q, limits, kind)
	if err != nil || room >= amount {
		return err
	}
	return storageRefusal(tight, kind, amount+included, used-included)
}

// unlimited is the room of a tenant without a binding limit.
const unlimited = int64(1) << 62

// storageRoom returns the least room that the limits leave for this kind of data,
// negative beyond a limit; the limit that leaves the least, and its amount in use.
func storageRoom(
	ctx context.Context, q querier, limits []StorageLimit, kind string,
) (room int64, tight StorageLimit, used int64, err error) {
	binding := Binding(limits, kind)
	room = unlimited
	if len(binding) == 0 {
		return room, tight, 0, nil
	}
	var tenants []string
	for _, l := range binding {
		tenants = append(tenants, string(l.Tenant))
	}
	slices.Sort(tenants)
	stored, err := storedBelow(ctx, q, slices.Compact(tenants))
	if err != nil {
		return 0, tight, 0, err
	}
	for _, l := range binding {
		n := storedOf(*stored[l.Tenant], l.Kind)
		if left := l.Most - n; left < room {
			room, tight, used = left, l, n
		}
	}
	return room, tight, used, nil
}

// storageRefusal says which limit has no room for amount more.
func storageRefusal(l StorageLimit, kind string, amount, used int64) error {
	if kind == StoredSecrets {
		detail := fmt.Sprintf("tenant %s has %d secrets, and may have %d", l.Tenant, used, l.Most)
		return &berth.Error{
			Code: berth.CodeConflict, Slug: berth.SlugQuota, Message: detail + " (storage.secrets of its quota)",
			Fields: []berth.FieldError{{
				Field: "name", Detail: detail,
				Allowed: "another value of a secret that exists; berth secret delete makes room",
			}},
		}
	}
	of := kind
	if l.Kind == StoredTotal {
		of = "data in all"
	}
	detail := fmt.Sprintf("%s more do not fit: tenant %s stores %s of %s, and may store %s",
		berth.BytesText(amount), l.Tenant, berth.BytesText(max(0, used)), of, berth.BytesText(l.Most))
	allowed := "at most " + berth.BytesText(max(0, l.Most-used))
	return &berth.Error{
		Code: berth.CodeInvalid, Slug: berth.SlugStorageQuota,
		Message: fmt.Sprintf("%s (storage.%s of its quota)", detail, l.Kind),
		Fields:  []berth.FieldError{{Field: kind, Detail: detail, Allowed: allowed}},
	}
}

// Room returns how many bytes of this kind the limits leave room for, at most most.
// The error has slug storage_quota where amount bytes do not fit. Calls at the same
// moment may all be granted the same room.
func (d *Storage) Room(ctx context.Context, limits []StorageLimit, kind string, amount, most int64) (int64, error) {
	room, tight, used, err := storageRoom(ctx, d.pool, limits, kind)
	if err != nil {
		return 0, mapError(err, "storage")
	}
	if room < amount || room <= 0 {
		return 0, storageRefusal(tight, kind, amount, used)
	}
	return min(room, most), nil
}

// Counts reports whether an object that a machine is about to store counts already: a
// restarted agent repeats the transfer of an output, or of a shard of a checkpoint,
// that was registered before. bytes is the length of what the agent is about to send;
// more than what is registered does not count yet.
func (d *Storage) Counts(ctx context.Context, o StoredObject) (bool, error) {
	var counts bool
	err := d.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM outputs WHERE object = @key AND stored_bytes >= @bytes)
			OR EXISTS (
				SELECT 1
				FROM checkpoint_shards h
				JOIN checkpoints c ON c.job = h.job AND c.step = h.step AND c.attempt = h.attempt
				WHERE h.job = @job AND h.step = @step AND h.attempt = @attempt AND h.rank = @rank
				  AND h.bytes >= @bytes AND c.state IN ('partial', 'verified'))`,
		pgx.NamedArgs{
			"key": o.Key, "job": o.Job, "step": o.Step, "attempt": o.Attempt, "rank": o.Rank, "bytes": o.Bytes,
		}).Scan(&counts)
	return counts, mapError(err, "storage")
}

// StoredObject is an object of a member of a job. Step is -1 unless the object is a part of
// a checkpoint.
type StoredObject struct {
	Key     string
	Job     berth.JobID
	Attempt int
	Rank    int
	Step    int64
	Bytes   int64
}

// Refusal is the error of data that exceeds the tightest of the limits; amount is its
// size as far as known.
func (d *Storage) Refusal(ctx context.Context, limits []StorageLimit, kind string, amount int64) error {
	_, tight, used, err := storageRoom(ctx, d.pool, limits, kind)
	if err != nil {
		return mapError(err, "storage")
	}
	return storageRefusal(tight, kind, amount, used)
}

// Fold adds recorded changes to tenant_storage, at most limit of them, and returns
// how many. The sums that are read do not change by it.
func (d *Storage) Fold(ctx context.Context, term Term, limit int) (int, error) {
	var some bool
	err := d.pool.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM storage_changes)`).Scan(&some)
	if err != nil || !some {
		return 0, mapError(err, "storage")
	}
	var n int
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			WITH taken AS MATERIALIZED (
				DELETE FROM storage_changes
				WHERE id IN (SELECT id FROM storage_changes ORDER BY id LIMIT @limit)
				RETURNING tenant, kind, amount
			), folded AS (
				INSERT INTO tenant_storage AS t (tenant, kind, amount)
				SELECT tenant, kind, sum(amount)
				FROM taken
				GROUP BY tenant, kind
				ON CONFLICT (tenant, kind) DO UPDATE SET amount = t.amount + excluded.amount
			)
			SELECT count(*) FROM taken`, pgx.NamedArgs{"limit": limit}).Scan(&n)
	})
	return n, mapError(err, "storage")
}

// StoredAmount is stored data of one tenant, without those below it.
type StoredAmount struct {
	Tenant berth.TenantID
	Kind   string
	Amount int64
}

// Amounts lists stored data by tenant and kind.
func (d *Storage) Amounts(ctx context.Context) ([]StoredAmount, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT tenant, kind, sum(amount)::bigint
		FROM (
			SELECT tenant, kind, amount FROM tenant_storage
			UNION ALL
			SELECT tenant, kind, amount FROM storage_changes
		) c
		GROUP BY tenant, kind
		ORDER BY tenant, kind`)
	if err != nil {
		return nil, mapError(err, "storage")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[StoredAmount])
	return list, mapError(err, "storage")
}

// readLimits reads limits as the function storage_limits returns them.
func readLimits(document []byte) (limits []StorageLimit, err error) {
	if document != nil {
		err = json.Unmarshal(document, &limits)
	}
	return limits, err
}
