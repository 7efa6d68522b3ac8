package db

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
)

// Principal is who speaks: what a valid token stands for.
type Principal struct {
	TokenID   string
	Name      string
	Tenant    berth.TenantID
	Role      berth.Role
	Machine   berth.MachineID // of a machine's token
	ExpiresAt *time.Time
}

// Prefixes of the secrets handed out; the rest is <id>_<64 hex digits>.
const (
	tokenPrefix     = "berth"
	joinTokenPrefix = "berthjoin"
)

// mintToken returns a new secret's id, its text (shown once) and the hash that
// is stored. A dump of the table opens nothing: the secret has 256 random bits.
func mintToken(prefix string) (id, text string, sum []byte) {
	var b [6]byte
	_, _ = rand.Read(b[:])
	id = hex.EncodeToString(b[:])
	text = prefix + "_" + id + "_" + berth.NewSecret()
	h := sha256.Sum256([]byte(text))
	return id, text, h[:]
}

// tokenID returns the public part of a secret's text and the hash of the whole.
// ok is false for texts that are no secret of this prefix.
func tokenID(prefix, text string) (id string, sum []byte, ok bool) {
	h := sha256.Sum256([]byte(text))
	part := strings.Split(text, "_")
	if len(part) != 3 || part[0] != prefix || len(part[1]) != 12 || len(part[2]) != 64 {
		return "", h[:], false
	}
	return part[1], h[:], true
}

// errUnauthorized is the one answer to every token that opens nothing, whatever
// the cause.
func errUnauthorized() error {
	return berth.Errorf(berth.CodeUnauthorized, "the token is missing, unknown, expired or revoked")
}

// Authenticate returns whom the token stands for, or an error of code
// unauthorized that does not tell why. Only to the right token of a machine that
// was removed it says so, for its agent to end. The work is the same for every
// token of the right form, and hashes are compared in constant time.
func (d *DB) Authenticate(ctx context.Context, token string) (Principal, error) {
	return authenticate(ctx, d.pool, token)
}

// AuthenticateMachine is Authenticate for the calls of agents, which must be
// heard however many users are waiting.
func (d *DB) AuthenticateMachine(ctx context.Context, token string) (Principal, error) {
	return authenticate(ctx, d.vital, token)
}

func authenticate(ctx context.Context, pool *pgxpool.Pool, token string) (Principal, error) {
	id, sum, ok := tokenID(tokenPrefix, token)
	if !ok {
		return Principal{}, errUnauthorized()
	}
	p := Principal{TokenID: id}
	stored := make([]byte, sha256.Size)
	var live, retired bool
	err := pool.QueryRow(ctx, `
		SELECT t.name, t.tenant, t.role, coalesce(t.machine_id, ''), t.sha256, t.expires_at,
		       t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now()),
		       coalesce(m.state = 'retired', false)
		FROM tokens t
		LEFT JOIN machines m ON m.id = t.machine_id
		WHERE t.id = @id`,
		pgx.NamedArgs{"id": id}).Scan(&p.Name, &p.Tenant, &p.Role, &p.Machine, &stored, &p.ExpiresAt, &live, &retired)
	if err := mapError(err, "token"); err != nil && berth.CodeOf(err) != berth.CodeNotFound {
		return Principal{}, err
	}
	right := subtle.ConstantTimeCompare(stored, sum) == 1
	switch {
	case right && retired:
		return Principal{}, errRetired(p.Machine)
	case !right || !live:
		return Principal{}, errUnauthorized()
	}
	return p, nil
}

// CreateToken makes a token and returns it with its secret, which is nowhere
// stored. The tenant comes into being with its first token, unless one of that id
// was deleted and has left jobs: that is a conflict. One that is being deleted is
// not_found.
func (d *DB) CreateToken(ctx context.Context, n berth.NewToken) (t berth.Token, err error) {
	id, text, sum := mintToken(tokenPrefix)
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if err := ensureTenant(ctx, tx, n.Tenant); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			INSERT INTO tokens (id, tenant, name, role, sha256, expires_at)
			VALUES (@id, @tenant, @name, @role, @sha256, now() + nullif(@ttl_ms::bigint, 0) * interval '1 millisecond')
			RETURNING `+tokenDocument,
			pgx.NamedArgs{"id": id, "tenant": n.Tenant, "name": n.Name, "role": n.Role, "sha256": sum, "ttl_ms": n.TTL.Std().Milliseconds()}).Scan(&t)
	})
	if err != nil {
		return berth.Token{}, mapError(err, "token")
	}
	t.Secret = text
	return t, nil
}

const tokenDocument = `jsonb_strip_nulls(jsonb_build_object(
			'id', id, 'name', name, 'tenant', tenant, 'role', role, 'machine', machine_id,
			'created_at', created_at, 'expires_at', expires_at, 'revoked_at', revoked_at))`

// Tokens lists all tokens of all tenants, oldest first.
func (d *DB) Tokens(ctx context.Context) ([]berth.Token, error) {
	rows, err := d.pool.Query(ctx, `SELECT `+tokenDocument+` FROM tokens ORDER BY created_at, id`)
	if err != nil {
		return nil, mapError(err, "tokens")
	}
	tokens, err := pgx.CollectRows(rows, pgx.RowTo[berth.Token])
	return tokens, mapError(err, "tokens")
}

// RevokeToken ends a token for good. Revoking twice is no error.
func (d *DB) RevokeToken(ctx context.Context, id string) error {
	tag, err := d.pool.Exec(ctx, `
		UPDATE tokens
		SET revoked_at = coalesce(revoked_at, now())
		WHERE id = @id`,
		pgx.NamedArgs{"id": id})
	if err == nil && tag.RowsAffected() == 0 {
		err = pgx.ErrNoRows
	}
	return mapError(err, "token "+id)
}

// EnsureToken stores a token whose text the caller chose (an operator's first
// one) unless it is known already. The text must have the form that CreateToken
// gives.
func (d *DB) EnsureToken(ctx context.Context, text string, n berth.NewToken) error {
	id, sum, ok := tokenID(tokenPrefix, text)
	if !ok {
		return berth.Errorf(berth.CodeInvalid, "a token is written berth_<12 hex digits>_<64 hex digits>")
	}
	_, err := d.pool.Exec(ctx, `
		INSERT INTO tokens (id, tenant, name, role, sha256)
		VALUES (@id, @tenant, @name, @role, @sha256)
		ON CONFLICT DO NOTHING`,
		pgx.NamedArgs{"id": id, "tenant": n.Tenant, "name": n.Name, "role": n.Role, "sha256": sum})
	return mapError(err, "token")
}
