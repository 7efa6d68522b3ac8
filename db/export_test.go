package db

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// FollowUp is the number of jobs below a parent that one call orders to stop.
const FollowUp = followUp

// MigrateWith is Migrate with other files, and patience with who has the tables.
func MigrateWith(ctx context.Context, url string, files fs.FS, patience time.Duration) error {
	return migrateWith(ctx, url, files, patience)
}

// Backfill is the part of Migrate that follows the migrations, with batches of that many
// rows and patience for locks.
func Backfill(ctx context.Context, url string, batch int, patience time.Duration) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return fill(ctx, conn, batch, patience)
}

// SharesOf divides a pool of conns connections.
func SharesOf(conns int) Shares { return sharesOf(conns) }

// FullTenants is the statement that selects the tenants whose quota of waiting jobs is used up.
const FullTenants = fullTenants

// SubmitStatement is the statement that stores a job.
func SubmitStatement(s Submission) (sql string, args []any, err error) {
	row, err := newSubmitRow(s)
	if err != nil {
		return "", nil, err
	}
	batch := &pgx.Batch{}
	row.queue(batch)
	last := batch.QueuedQueries[batch.Len()-1]
	return last.SQL, last.Arguments, nil
}

// Migrations are the files of Migrate.
var Migrations fs.FS = migrations

// ReadPatiently makes calls that will most likely be held wait that long for others.
func (d *DB) ReadPatiently(patience time.Duration) {
	d.sessions.patience, d.sessions.gather.pause = patience, patience
}

// LeaderTx is how a leader writes.
func (d *DB) LeaderTx(ctx context.Context, term Term, f func(tx pgx.Tx) error) error {
	return d.leaderTx(ctx, term, f)
}

// Query is the statement behind the first page of a list.
func (f JobFilter) Query() (string, namedArgs) { return f.query(nil) }

// Query is the statement that looks for the run times of a work.
func (w Work) Query() (string, namedArgs) {
	args := namedArgs{}
	for k, v := range runsArgs([]Work{w}) {
		args[k] = "{" + v.([]string)[0] + "}"
	}
	return w.runs(), args
}

// DoomOutput is the second step of an output that was refused.
func (d *Objects) DoomOutput(ctx context.Context, job berth.JobID, object string) error {
	return d.doomOutput(ctx, job, object)
}

// TailDigit is the digit that marks the incarnation in an id, before its last five.
func TailDigit(last string, incarnation int64) byte { return tailDigit([]byte(last), incarnation) }

// ResolveQuery is the statement that resolves an argument with the form of a part of an id.
func ResolveQuery(tenant berth.TenantID, arg string) (string, namedArgs) {
	return resolveQuery(tenant, arg)
}

// Setting returns the value of a setting in the session of a reader.
func (h *History) Setting(ctx context.Context, name string) (value string, err error) {
	err = h.tx.QueryRow(ctx, `SELECT current_setting($1)`, name).Scan(&value)
	return value, err
}

// PruneTx is how a leader deletes old rows.
func (d *DB) PruneTx(ctx context.Context, term Term, f func(tx pgx.Tx) error) error {
	return d.pruneTx(ctx, term, f)
}

// SessionsOfJob is the statement of JobSessions.List.
func SessionsOfJob(open bool) string { return sessionsOfJob(open) }
