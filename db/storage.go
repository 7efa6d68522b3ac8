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

// Kinds of stored data. Secrets are counted; the other kinds are measured in bytes.
const (
	StoredUploads     = "uploads"
	StoredLogs        = "logs"
	StoredOutputs     = "outputs"
	StoredCheckpoints = "checkpoints"
	StoredSecrets     = "secrets"

	// StoredTotal limits the sum of all kinds that are measured in bytes.
	StoredTotal = "total"
)

// StorageLimit is one limit of a storage quota. It limits the sum over its tenant and all
// tenants below it.
type StorageLimit struct {
	Tenant berth.TenantID `json:"tenant"`
	Kind   string         `json:"kind"`
	Most   int64          `json:"most"` // bytes, or a number of secrets
}

// Binds reports whether the limit applies to this kind of data.
func (l StorageLimit) Binds(kind string) bool {
	return l.Kind == kind || l.Kind == StoredTotal && kind != StoredSecrets
}

// Binding returns the limits that apply to the kind of data.
func Binding(limits []StorageLimit, kind string) []StorageLimit {
	var list []StorageLimit
	for _, l := range limits {
		if l.Binds(kind) {
			list = append(list, l)
		}
	}
	return list
}

// LimitsOf returns the limits of a tenant's own quota; quotas of tenants above are not
// included.
func LimitsOf(q spec.Quota) []StorageLimit {
	var list []StorageLimit
	for kind, most := range storageDocument(q.Storage) {
		list = append(list, StorageLimit{Tenant: q.Tenant, Kind: kind, Most: most})
	}
	return list
}

// storageDocument returns a storage quota in the format of the column tenants.storage,
// bytes by kind; nil without a limit.
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
			m[kind] = int64(*most) << 20 // MiB to bytes
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

// readStored sums stored data by kind over each tenant and the tenants below it. One
// statement reads the sums and the changes not yet added, so Fold never makes a change
// count twice.
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
	rows, err := q.Query(ctx, readStored, namedArgs{"tenants": tenants})
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

// addStored adds an amount to its kind and, for bytes, to the total.
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

// storedOf returns the amount that a limit of this kind applies to.
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

// lockStorage serializes the transactions that add this kind of data under the same limits,
// until this transaction ends: each then sees the rows of the previous one. The lock
// follows the rows of jobs and precedes all rows that count, in the lock order. Without a
// binding limit, lockStorage does nothing.
func lockStorage(ctx context.Context, tx pgx.Tx, limits []StorageLimit, kind string) error {
	var tenants []string
	for _, l := range Binding(limits, kind) {
		tenants = append(tenants, string(l.Tenant))
	}
	if len(tenants) == 0 {
		return nil
	}
	// Two transactions with common limits take their locks in the same order.
	slices.Sort(tenants)
	_, err := tx.Exec(ctx, `
		SELECT pg_advisory_xact_lock(hashtextextended('storage/' || x.tenant, 0))
		FROM unnest(@tenants::text[]) WITH ORDINALITY x (tenant, n)
		ORDER BY x.n`, namedArgs{"tenants": slices.Compact(tenants)})
	return err
}

// checkStorage refuses amount more bytes of this kind, with slug storage_quota, if a limit
// has less left. A transaction that has already inserted its rows passes their size as
// included; that size only appears in the error's text.
func checkStorage(ctx context.Context, q querier, limits []StorageLimit, kind string, amount, included int64) error {
	room, tight, used, err := storageRoom(ctx, q, limits, kind)
	if err != nil || room >= amount {
		return err
	}
	return storageRefusal(tight, kind, amount+included, used-included)
}

// unlimited is the remaining amount without a binding limit.
const unlimited = int64(1) << 62

// storageRoom returns the least amount that any limit leaves for this kind of data,
// negative if a limit is exceeded; the limit that leaves the least; and the amount in use
// under that limit.
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

// storageRefusal returns the error for amount more under a limit of which used is in use.
func storageRefusal(l StorageLimit, kind string, amount, used int64) error {
	if kind == StoredSecrets {
		detail := fmt.Sprintf("tenant %s has %s, and its quota is %d", l.Tenant, plural(int(used), "secret"), l.Most)
		return &berth.Error{
			Code: berth.CodeConflict, Slug: berth.SlugQuota, Message: detail + " (storage.secrets of its quota)",
			Fields: []berth.FieldError{{
				Field: "name", Detail: detail,
				Allowed: "a new value for an existing secret; delete others with berth secret delete",
			}},
		}
	}
	of := kind
	if l.Kind == StoredTotal {
		of = "data in total"
	}
	detail := fmt.Sprintf("no room for %s more: tenant %s stores %s of %s, and its quota is %s",
		berth.BytesText(amount), l.Tenant, berth.BytesText(max(0, used)), of, berth.BytesText(l.Most))
	allowed := "at most " + berth.BytesText(max(0, l.Most-used))
	return &berth.Error{
		Code: berth.CodeInvalid, Slug: berth.SlugStorageQuota,
		Message: fmt.Sprintf("%s (storage.%s of its quota)", detail, l.Kind),
		Fields:  []berth.FieldError{{Field: kind, Detail: detail, Allowed: allowed}},
	}
}

// Room returns the bytes of this kind that the limits leave, at most most. If amount bytes
// do not fit, the error has slug storage_quota. Room reserves nothing: concurrent calls may
// all get the same bytes.
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

// Counts reports whether an object that a machine is about to store is already counted: a
// restarted agent repeats the transfer of an output or checkpoint shard that was registered
// before. o.Bytes is the length of the object to send; an object larger than the registered
// one does not count yet.
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
		namedArgs{
			"key": o.Key, "job": o.Job, "step": o.Step, "attempt": o.Attempt, "rank": o.Rank, "bytes": o.Bytes,
		}).Scan(&counts)
	return counts, mapError(err, "storage")
}

// StoredObject is an output or checkpoint shard of a member.
type StoredObject struct {
	Key     string
	Job     berth.JobID
	Attempt int
	Rank    int
	Step    int64 // -1: not part of a checkpoint
	Bytes   int64
}

// Refusal returns the error for data that exceeds the tightest of the limits. amount is the
// size of the data as far as known.
func (d *Storage) Refusal(ctx context.Context, limits []StorageLimit, kind string, amount int64) error {
	_, tight, used, err := storageRoom(ctx, d.pool, limits, kind)
	if err != nil {
		return mapError(err, "storage")
	}
	return storageRefusal(tight, kind, amount, used)
}

// Fold adds recorded changes to tenant_storage, at most limit rows, and returns the number
// of rows. The sums that other statements read stay the same.
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
			SELECT count(*) FROM taken`, namedArgs{"limit": limit}).Scan(&n)
	})
	return n, mapError(err, "storage")
}

// StoredAmount is the stored data of one kind of one tenant, without tenants below it.
type StoredAmount struct {
	Tenant berth.TenantID
	Kind   string
	Amount int64
}

// Amounts returns all stored amounts by tenant and kind.
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

// readLimits decodes limits in the format of the SQL function storage_limits.
func readLimits(document []byte) (limits []StorageLimit, err error) {
	if document != nil {
		err = json.Unmarshal(document, &limits)
	}
	return limits, err
}
