package preflight

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"berth/db"
	"berth/internal/lib/sealer"
)

// Limits of the difference between the clocks of this host and of the database.
const (
	clockAdvice = time.Second
	clockFault  = 10 * time.Second
)

// leastServer is the oldest version of PostgreSQL that Berth supports, as PostgreSQL writes it.
const leastServer = 150000

// database examines the database, its clock, and the keys that open what it stores. Without an answer
// of the database, the checks that depend on it are advice and not faults: their result is not known.
func (r *report) database(ctx context.Context) {
	keys := r.loadKeys()
	if r.Config.DatabaseURL == "" { // a fault of the settings
		r.add("keys", Advice, "", "not compared with stored secrets: no database is set")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*r.Limit)
	defer cancel()
	before := time.Now()
	found, err := db.Inspect(ctx, withTimeout(r.Config.DatabaseURL, r.Limit))
	after := time.Now()
	host := cmp.Or(db.Host(r.Config.DatabaseURL), "the socket of this host")
	if err != nil {
		r.add("database", Fault, "compare database-url, the rights of its role, and pg_hba.conf of the server",
			"PostgreSQL at %s: %v", host, err)
		r.add("clock", Advice, "", "not compared: the database does not answer")
		r.add("keys", Advice, "", "not compared with stored secrets: the database does not answer")
		return
	}
	r.storeID = found.StoreID
	r.server(host, found)
	r.schema(found)
	r.rights(found)
	// The time of the server falls between the end of its last statement and the answer.
	r.clock(found.Clock, before, after)
	r.keys(ctx, found, keys)
}

// withTimeout adds a limit for the connection to a connection string that has none. A connection string
// is either a URL or a list of settings separated by blanks.
func withTimeout(url string, limit time.Duration) string {
	if strings.Contains(url, "connect_timeout") {
		return url
	}
	setting := fmt.Sprintf("connect_timeout=%d", max(1, int(limit.Seconds())))
	switch {
	case !strings.Contains(url, "://"):
		return url + " " + setting
	case strings.Contains(url, "?"):
		return url + "&" + setting
	}
	return url + "?" + setting
}

// server reports the server itself: its version, whether it can be written to, and its connections. A
// pool larger than the limit of the role would fail only under load, so the check compares both now.
func (r *report) server(host string, found db.Inspection) {
	version := fmt.Sprintf("%d.%d", found.Server/10000, found.Server%10000)
	switch {
	case found.Standby:
		r.add("database", Fault, "name the primary server in database-url",
			"PostgreSQL at %s is a standby, which cannot be written to", host)
	case found.Server < leastServer:
		r.add("database", Fault, "upgrade it to version 15 or newer", "PostgreSQL at %s has version %s", host, version)
	default:
		r.add("database", OK, "", "PostgreSQL %s at %s answers role %s", version, host, found.Role)
	}
	if needed := r.Config.DatabaseConns + found.Reserved; found.Conns < needed {
		r.add("database", Fault, "raise max_connections of the server or the CONNECTION LIMIT of the role, or lower "+
			"database-conns", "a replica opens up to %d connections, and role %s may open %d", needed, found.Role,
			found.Conns)
	}
}

// schema reports whether this program can use or migrate the schema. An older schema is no fault, since
// a start of berthd migrates it. A newer one is found as a conflict.
func (r *report) schema(found db.Inspection) {
	switch {
	case found.Conflict != nil:
		r.add("database", Fault, "", "%v", found.Conflict)
	case found.Version == 0:
		r.add("database", OK, "", "there is no schema yet; the first start creates version %d", found.Wanted)
	case found.Version < found.Wanted:
		r.add("database", OK, "", "the schema has version %d; the first start of this program migrates it to %d",
			found.Version, found.Wanted)
	default:
		r.add("database", OK, "", "the schema has version %d, as this program", found.Version)
	}
}

// rights reports rights that the role lacks for migrations and statements. It names at most five
// tables.
func (r *report) rights(found db.Inspection) {
	if !found.MayCreate {
		r.add("database", Fault, fmt.Sprintf("ALTER DATABASE ... OWNER TO %s", found.Role),
			"role %s may not create tables in the schema public", found.Role)
	}
	if len(found.Foreign) > 0 {
		const most = 5
		names, more := found.Foreign, ""
		if len(names) > most {
			names, more = names[:most], fmt.Sprintf(" and %d more", len(found.Foreign)-most)
		}
		r.add("database", Fault, fmt.Sprintf("REASSIGN OWNED BY the present owner TO %s", found.Role),
			"role %s does not own %s%s, and cannot migrate them", found.Role, strings.Join(names, ", "), more)
	}
}

// clock compares the time of the database, read between before and after, with this host's. The
// database answered at some moment between the two, so only the time beyond them is a certain
// difference.
func (r *report) clock(database, before, after time.Time) {
	var apart time.Duration
	switch {
	case database.Before(before):
		apart = before.Sub(database)
	case database.After(after):
		apart = database.Sub(after)
	}
	shown := apart.Round(time.Millisecond)
	switch {
	case apart > clockFault:
		r.add("clock", Fault, "synchronise both clocks by NTP", "this host and the database differ by %s", shown)
	case apart > clockAdvice:
		r.add("clock", Advice, "synchronise both clocks by NTP", "this host and the database differ by %s", shown)
	default:
		r.add("clock", OK, "", "this host and the database agree within a second")
	}
}

// loadKeys reads the secret keys; nil if there are none or the file has a fault.
func (r *report) loadKeys() *sealer.Keys {
	if r.Config.SecretKeyFile == "" {
		return nil
	}
	keys, err := sealer.Load(r.Config.SecretKeyFile)
	if err != nil {
		r.add("keys", Fault, "", "%v", err)
		return nil
	}
	return keys
}

// keys reports stored values that the keys do not open. In an older schema the stored secrets cannot be
// read, so they are not compared.
func (r *report) keys(ctx context.Context, found db.Inspection, keys *sealer.Keys) {
	switch {
	case found.Version != found.Wanted || found.Conflict != nil:
		if found.Version > 0 {
			r.add("keys", Advice, "check again after the migration",
				"not compared with stored secrets: the schema has another version")
			return
		}
	case keys == nil && len(found.SealedKeys) > 0:
		r.add("keys", Fault, "set secret-key-file to the file with these keys",
			"stored secrets are sealed with keys that are not there: %s", strings.Join(found.SealedKeys, ", "))
		return
	case keys != nil:
		r.openAll(ctx, found.SealedKeys, keys)
		return
	}
	switch {
	case keys != nil:
		r.add("keys", OK, "", "%s has keys; no secrets are stored yet", r.Config.SecretKeyFile)
	case r.Config.SecretKeyFile == "":
		r.add("keys", Advice, "set secret-key-file", "there are no secret keys, so secrets and webhooks are refused")
	}
}

// openAll opens each stored secret, and compares the keys of other sealed values by their ids. A key
// with the right id may still not open a damaged value, so each secret is opened, a page at a time.
// Faults name tenant and secret, never a value.
func (r *report) openAll(ctx context.Context, ids []string, keys *sealer.Keys) {
	missing := 0
	for _, id := range ids {
		if !keys.Has(id) {
			missing++
			r.add("keys", Fault, "add the key to secret-key-file, below the first one",
				"stored secrets are sealed with key %s, which %s lacks", id, r.Config.SecretKeyFile)
		}
	}
	d, err := db.Open(ctx, r.Config.DatabaseURL, db.Options{MaxConns: 4})
	if err != nil {
		r.add("keys", Advice, "", "stored secrets were not opened: %v", err)
		return
	}
	defer d.Close()
	const page = 500
	opened, damaged := 0, 0
	for after := (db.SealedSecret{}); ; {
		list, err := d.Secrets.NotUnder(ctx, "", after, page)
		if err != nil {
			r.add("keys", Advice, "", "stored secrets were not opened: %v", err)
			return
		}
		for _, s := range list {
			after = s
			_, err := keys.Open(s.Tenant, s.Name, s.Key, s.Sealed)
			switch {
			case err == nil:
				opened++
			case keys.Has(s.Key): // a missing key is reported once
				damaged++
				r.add("keys", Fault, "set the secret again", "secret %s of tenant %s: %v", s.Name, s.Tenant, err)
			}
		}
		if len(list) < page {
			break
		}
	}
	if missing+damaged == 0 {
		r.add("keys", OK, "", "the keys open all %d stored secrets", opened)
	}
}
