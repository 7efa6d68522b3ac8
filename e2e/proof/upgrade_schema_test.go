package proof_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// replaceInterrupted kills an old replica and starts the program of this repository, which it kills in the middle of
// its migrations: some are applied, and the next one waits for a table that this test holds. The next start completes
// them.
func (u *upgrade) replaceInterrupted(p *replica) {
	u.t.Helper()
	before := u.schema()
	p.now.kill()
	conn, err := pgx.Connect(u.t.Context(), u.at.DatabaseURL)
	if err != nil {
		u.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tx, err := conn.Begin(u.t.Context())
	if err == nil {
		// It lets readers and writers in, and holds up each change of the table. Migration 0068 changes it.
		_, err = tx.Exec(u.t.Context(), `LOCK TABLE attempts IN ACCESS SHARE MODE`)
	}
	if err != nil {
		u.t.Fatal(err)
	}
	p.folder, u.migrated = "", true
	p.launch()
	until(u.t, "a migration waits for the table", func(context.Context) error {
		if !p.now.running() {
			u.t.Fatalf("berthd ended: %v", p.now.err)
		}
		b, err := os.ReadFile(p.log())
		if err == nil && !strings.Contains(string(b), "for a table that other sessions use") {
			err = errNotYet
		}
		return err
	})
	p.now.kill()
	between := u.schema()
	if err := tx.Rollback(u.t.Context()); err != nil {
		u.t.Fatal(err)
	}
	p.start()
	u.awaitMachines()
	after := u.schema()
	fmt.Printf("the migrations from %d to %d were interrupted at %d\n", before, after, between)
	if before >= between || between >= after {
		u.t.Errorf("the migrations from %d to %d were interrupted at %d, which is not between them: hold a table that "+
			"a later one changes", before, after, between)
	}
}

// schema returns the version of the schema.
func (u *upgrade) schema() int {
	u.t.Helper()
	v, err := pgx.CollectExactlyOneRow(u.query(`SELECT version FROM public.schema_version`), pgx.RowTo[int])
	if err != nil {
		u.t.Fatal(err)
	}
	return v
}

// wantOldRefused checks that the old berthd refuses the new schema, and says so.
func (u *upgrade) wantOldRefused() {
	u.t.Helper()
	p := &replica{s: u.stack, name: "berthd-back", listen: freeAddress(u.t), token: u.r.all[0].token, folder: u.old}
	p.launch()
	defer p.api.Close()
	select {
	case <-p.now.exited:
	case <-time.After(patience):
		u.t.Fatal("the old berthd did not end on a schema that is newer than itself")
	}
	u.others = u.others[:len(u.others)-1] // it has ended, with an error
	text := tail(p.log())
	if p.now.err == nil || !strings.Contains(text, fmt.Sprintf("the database is at schema version %d", u.schema())) ||
		!strings.Contains(text, "run a newer one") {
		u.t.Errorf("the old berthd ended with %v, and logged\n%s", p.now.err, text)
	}
	for _, id := range u.lasting {
		u.becomes(id, berth.Running)
	}
}
