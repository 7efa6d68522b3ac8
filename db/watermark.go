package db

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// watermarkLeap is the distance by which the watermark numbers jump after a restore: more
// than the number of watermarks that the lost rows can have granted.
const watermarkLeap = 1_000_000_000

// knowsGranted is true if the database, row c of cluster, has granted the watermark
// @mark_number of @mark_branch, or has leapt beyond this number since. It is also true for
// a watermark of another cluster, and for number 0, which means no watermark.
const knowsGranted = `
	(@mark_cluster <> c.id OR @mark_number < c.leapt_to OR EXISTS (
		SELECT 1 FROM watermark_branches w WHERE w.branch = @mark_branch AND w.granted >= @mark_number
	))`

// grantedNow is the number of the newest watermark according to row c of cluster; 0 before
// the first one.
const grantedNow = `coalesce((SELECT w.granted FROM watermark_branches w WHERE w.branch = c.branch), 0)`

// markArgs adds the arguments of knowsGranted.
func markArgs(args namedArgs, w wire.StoredWatermark) namedArgs {
	args["mark_cluster"], args["mark_number"], args["mark_branch"] = w.Cluster, w.Number, w.Branch
	return args
}

// signature returns the proof that this database granted a watermark: an HMAC under the
// cluster's key, truncated to 128 bits.
func signature(key []byte, cluster, branch string, number int64) string {
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "%s %d %s", cluster, number, branch)
	return hex.EncodeToString(m.Sum(nil)[:16])
}

// signer computes signatures in the process: every call of every agent needs the signature
// of the newest watermark, and must not cost a query.
type signer struct {
	key     []byte
	cluster string
}

// sign returns a signed watermark, or the zero Watermark for number 0.
func (s signer) sign(branch string, number int64) wire.Watermark {
	if number == 0 {
		return wire.Watermark{}
	}
	return wire.Watermark{Number: number, Branch: branch, Signature: signature(s.key, s.cluster, branch, number)}
}

// markRead is one reading of the database's watermarks and of its quarantine.
type markRead struct {
	cluster string
	branch  string // of the newest watermark
	number  int64  // of the newest watermark; 0 before the first
	leaptTo int64  // lower numbers count as granted
	key     []byte // signs watermarks

	quarantined bool // the cluster was restored, and no operator has adopted it yet
}

// markColumns are the columns for dest, from row c of cluster.
const markColumns = `c.id, c.branch, ` + grantedNow + `, c.leapt_to, c.watermark_key, c.quarantined_at IS NOT NULL`

// dest returns the scan targets of markColumns.
func (m *markRead) dest() []any {
	return []any{&m.cluster, &m.branch, &m.number, &m.leaptTo, &m.key, &m.quarantined}
}

// covers reports whether this reading already shows that a caller's watermark was granted.
// Nearly all watermarks are covered; any other one needs a query.
func (m *markRead) covers(seen wire.StoredWatermark) bool {
	return seen.Cluster != m.cluster || seen.Number < m.leaptTo || seen.Branch == m.branch && seen.Number <= m.number
}

// now returns the newest watermark. Before the first grant its number is 0; a machine that
// knows a higher number refuses it, because the database is then older than the machine's.
func (m *markRead) now() *wire.Watermark {
	w := signer{m.key, m.cluster}.sign(m.branch, m.number)
	return &w
}

// behind reports whether a caller's watermark proves that the database has lost rows: this
// database has signed the watermark, but does not know its number.
func (m *markRead) behind(ctx context.Context, q interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, seen wire.StoredWatermark) (bool, error) {
	if m.covers(seen) || !m.signed(seen) {
		return false, nil
	}
	var known bool
	err := q.QueryRow(ctx, `SELECT `+knowsGranted+` FROM cluster c`, markArgs(namedArgs{}, seen)).Scan(&known)
	return !known, err
}

// signed reports whether a watermark was signed by this database. A watermark with a wrong
// signature proves nothing.
func (m *markRead) signed(seen wire.StoredWatermark) bool {
	return hmac.Equal([]byte(seen.Signature), []byte(signature(m.key, m.cluster, seen.Branch, seen.Number)))
}

// Outside is a watermark found outside the database, with the highest ids and terms of its
// reservation. Zero fields are unknown.
type Outside struct {
	wire.StoredWatermark
	IDs   int64 `json:"ids"`   // allocation ids up to this one may have been used
	Terms int64 `json:"terms"` // leader terms up to this one may have been used
}

// errRestored returns the error for a machine that has seen newer rows than the database
// has.
func errRestored(machine berth.MachineID) error {
	return berth.ErrStaleEpoch("the database was restored from a backup that machine %s is ahead of: register again",
		machine)
}

// vouch compares a machine's watermark with the database and reports whether the database
// was restored to an earlier time. If so, vouch leaps first; see Leap.
func vouch(ctx context.Context, d *core, seen wire.StoredWatermark) (restored bool, err error) {
	if seen.IsZero() {
		return false, nil
	}
	var m markRead
	if err := d.pool.QueryRow(ctx, `SELECT `+markColumns+` FROM cluster c`).Scan(m.dest()...); err != nil {
		return false, mapError(err, "watermark")
	}
	if restored, err = m.behind(ctx, d.pool, seen); err != nil || !restored {
		return false, mapError(err, "watermark")
	}
	_, err = leapPast(ctx, d, Outside{StoredWatermark: seen})
	return true, err
}

// KnowsStored reports whether this database granted a watermark found in the object store,
// or had reserved it.
func (d *Leader) KnowsStored(ctx context.Context, w wire.StoredWatermark) (known bool, err error) {
	err = d.pool.QueryRow(ctx, `
		SELECT @mark_cluster <> c.id OR @mark_number < c.leapt_to OR EXISTS (
			SELECT 1 FROM watermark_branches w WHERE w.branch = @mark_branch AND w.pending >= @mark_number
		)
		FROM cluster c`, markArgs(namedArgs{}, w)).Scan(&known)
	return known, mapError(err, "watermark")
}

// leapPast implements Leader.Leap for other stores, which share functions over core.
func leapPast(ctx context.Context, d *core, proof Outside) (done bool, err error) {
	var made leaps
	err = d.tx(ctx, func(tx pgx.Tx) error {
		done = false
		if err := stopLeaders(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT 1 FROM cluster FOR NO KEY UPDATE`); err != nil {
			return fmt.Errorf("lock cluster: %w", err)
		}
		var known bool
		err := tx.QueryRow(ctx, `SELECT `+knowsGranted+` FROM cluster c`,
			markArgs(namedArgs{}, proof.StoredWatermark)).Scan(&known)
		if err != nil || known {
			return err
		}
		done = true
		made, err = leap(ctx, tx, proof)
		return err
	})
	if err != nil {
		return false, mapError(err, "cluster")
	}
	if done {
		d.log.Error("database restored from a backup, ids and terms leapt, at_most_one jobs are held",
			"incarnation", made.incarnation,
			"lost_watermark", proof.Number)
		made.publish(d.hub)
		d.incarnations.forget()
	}
	return done, nil
}

// Leap moves allocation ids, the leader's term and watermarks beyond everything that was
// used before a restore, after proof has shown that the database was restored; see
// Incarnate for the further effects. It reports false, and changes nothing, if the database
// has leapt beyond proof meanwhile.
func (d *Leader) Leap(ctx context.Context, proof Outside) (done bool, err error) {
	return leapPast(ctx, d.core, proof)
}

// stopLeaders locks the leader's lease, which is first in the lock order. FOR UPDATE waits
// for the writes of the present term and delays later ones, which a weaker lock would let
// pass; see fence.
func stopLeaders(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT 1 FROM leases WHERE name = @name FOR UPDATE`, namedArgs{"name": LeaseLeader})
	if err != nil {
		return fmt.Errorf("lock lease: %w", err)
	}
	return nil
}

// leaps is the result of a leap.
type leaps struct {
	incarnation int64
	machines    []berth.MachineID // their sessions have ended
}

// publish wakes the waiting calls of the machines. It must follow the commit.
func (l leaps) publish(h *Hub) {
	for _, m := range l.machines {
		h.Publish(TopicMachine, string(m))
	}
}

// leap writes a leap. The caller has locked the lease and the row of cluster.
func leap(ctx context.Context, tx pgx.Tx, proof Outside) (l leaps, err error) {
	args := namedArgs{
		"name": LeaseLeader, "leap": int64(idLeap), "terms": proof.Terms, "ids": proof.IDs,
		"far": int64(watermarkLeap), "number": proof.Number, "branch": newBranch(),
	}
	_, err = tx.Exec(ctx, `
		UPDATE leases
		SET epoch = greatest(epoch + @leap, @terms::bigint + 1)
		WHERE name = @name`, args)
	if err != nil {
		return l, fmt.Errorf("leap terms: %w", err)
	}
	_, err = tx.Exec(ctx, `
		SELECT setval(pg_get_serial_sequence('allocations', 'id'),
		              greatest(nextval(pg_get_serial_sequence('allocations', 'id')) + @leap, @ids::bigint + 1))`, args)
	if err != nil {
		return l, fmt.Errorf("leap ids: %w", err)
	}
	// All numbers below the leap count as granted, so the rows of the lower branches can be
	// deleted. A trigger keeps in watermark_past how far the database knew them; see Tokens.Return.
	err = tx.QueryRow(ctx, `
		WITH next AS (
			SELECT greatest(c.leapt_to, @number, (SELECT max(pending) FROM watermark_branches)) + @far AS number
			FROM cluster c
		), past AS (
			DELETE FROM watermark_branches w
			USING next
			WHERE w.pending < next.number
		), branch AS (
			INSERT INTO watermark_branches (branch, granted, pending)
			SELECT @branch, number, number FROM next
		)
		UPDATE cluster
		SET incarnation = incarnation + 1, branch = @branch, leapt_to = next.number
		FROM next
		RETURNING incarnation`, args).Scan(&l.incarnation)
	if err != nil {
		return l, fmt.Errorf("leap watermarks: %w", err)
	}
	if err := leapUsers(ctx, tx); err != nil {
		return l, err
	}
	if err := holdAtMostOne(ctx, tx); err != nil {
		return l, err
	}
	// Every agent must register again, so that all its containers are compared with the
	// restored rows.
	rows, err := tx.Query(ctx, `
		WITH known AS (
			SELECT id FROM machines WHERE agent_boot <> '' ORDER BY id FOR NO KEY UPDATE
		), lease AS (
			UPDATE machine_leases l SET agent_boot = '' FROM known WHERE l.machine_id = known.id
		)
		UPDATE machines m SET agent_boot = '' FROM known WHERE m.id = known.id
		RETURNING m.id`)
	if err == nil {
		l.machines, err = pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	}
	if err != nil {
		return l, fmt.Errorf("end sessions of machines: %w", err)
	}
	return l, nil
}

// newBranch returns a random name for a branch.
func newBranch() string {
	var b [9]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

// Branch is one leader's own series of watermarks. The zero value with a Term is a new
// series. A Branch is not safe for concurrent use.
type Branch struct {
	Term     Term
	cluster  string
	name     string // "" before the first Reserve
	granted  int64  // newest number known to be granted
	reserved int64  // number of the last Reserve
}

// Lost returns the proof for Leap that the database was restored, after Reserve or Grant
// has failed with ErrRestored.
func (b *Branch) Lost() Outside {
	newest := wire.Watermark{Number: b.granted, Branch: b.name}
	return Outside{StoredWatermark: wire.StoredWatermark{Cluster: b.cluster, Watermark: newest}}
}

// idBlock and termBlock are the numbers of ids and terms that may be used before the next
// watermark is granted.
const (
	idBlock   = idLeap
	termBlock = idLeap
)

// Reserve records the next watermark as pending. The caller then writes the watermark to
// the object store, and calls Grant. If the leader dies in between, the record shows that
// the store may be ahead by this one watermark. above is the highest number found in the
// store.
//
// A database that was restored under the leader is an error, and so is a term that is over.
// If the row shows the number reserved last as granted, that is no error: Grant has
// committed, but its answer was lost.
func (b *Branch) Reserve(ctx context.Context, d *Leader, above int64) (Outside, error) {
	if b.name == "" {
		b.name = newBranch()
	}
	var next Outside
	var granted int64
	next.Branch = b.name
	err := d.leaderTx(ctx, b.Term, func(tx pgx.Tx) error {
		args := namedArgs{
			"branch": b.name, "above": above, "granted": b.granted, "reserved": b.reserved,
			"name": LeaseLeader, "ids": int64(idBlock), "terms": int64(termBlock),
		}
		err := tx.QueryRow(ctx, `
			INSERT INTO watermark_branches AS w (branch, granted, pending)
			SELECT @branch, 0, 1 + greatest(@above, c.leapt_to - 1,
			    CASE WHEN @granted::bigint = 0 THEN (SELECT max(pending) FROM watermark_branches) END)
			FROM cluster c
			WHERE @granted::bigint = 0 OR c.branch = @branch
			ON CONFLICT (branch) DO UPDATE
			SET pending = greatest(w.pending, w.granted + 1)
			WHERE w.granted = @granted OR w.granted = @reserved AND w.pending = @reserved
			RETURNING pending, granted`, args).Scan(&next.Number, &granted)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("watermark %d of branch %s is not in the database: %w", b.granted, b.name, ErrRestored)
		}
		if err != nil {
			return fmt.Errorf("reserve watermark: %w", err)
		}
		return tx.QueryRow(ctx, `
			SELECT c.id, coalesce(pg_sequence_last_value(pg_get_serial_sequence('allocations', 'id')::regclass), 0) +
				@ids, l.epoch + @terms
			FROM leases l, cluster c
			WHERE l.name = @name`, args).Scan(&next.Cluster, &next.IDs, &next.Terms)
	})
	if err == nil {
		b.cluster, b.granted, b.reserved = next.Cluster, granted, next.Number
	}
	return next, mapError(err, "watermark")
}

// Grant makes a reserved watermark the newest one. The caller has written the watermark to
// the object store before. Grant is idempotent.
func (b *Branch) Grant(ctx context.Context, d *Leader, next Outside) error {
	err := d.leaderTx(ctx, b.Term, func(tx pgx.Tx) error {
		args := namedArgs{"branch": b.name, "number": next.Number, "granted": b.granted}
		tag, err := tx.Exec(ctx, `
			UPDATE watermark_branches
			SET granted = @number
			WHERE branch = @branch AND granted IN (@granted, @number) AND pending = @number`, args)
		if err != nil {
			return fmt.Errorf("grant watermark: %w", err)
		}
		if tag.RowsAffected() == 0 {
			return fmt.Errorf("watermark %d of branch %s is not reserved: %w", next.Number, b.name, ErrRestored)
		}
		_, err = tx.Exec(ctx, `UPDATE cluster SET branch = @branch WHERE branch <> @branch`, args)
		return err
	})
	if err == nil {
		b.granted = next.Number
	}
	return mapError(err, "watermark")
}

// Baseline is the newest watermark that a process has read. The database must still know it
// at the next Verify. A Baseline is not safe for concurrent use.
type Baseline struct {
	seen wire.StoredWatermark
}

// Verify reads the newest watermark. It returns ErrRestored if the database no longer knows
// the watermark of the previous call; the caller must then call Leap with Lost. Any other
// error proves nothing.
func (b *Baseline) Verify(ctx context.Context, d *Leader) error {
	var m markRead
	var known bool
	err := d.pool.QueryRow(ctx, `SELECT `+knowsGranted+`, `+markColumns+` FROM cluster c`,
		markArgs(namedArgs{}, b.seen)).Scan(append([]any{&known}, m.dest()...)...)
	if err != nil {
		return mapError(err, "watermark")
	}
	if !known {
		return ErrRestored
	}
	b.seen = wire.StoredWatermark{Cluster: m.cluster, Watermark: *m.now()}
	return nil
}

// Lost returns the proof for Leap: the watermark of the last successful Verify.
func (b *Baseline) Lost() Outside { return Outside{StoredWatermark: b.seen} }

// ErrRestored reports that the database lacks rows that were committed.
var ErrRestored = errors.New("the database has lost committed rows: was a backup restored?")
