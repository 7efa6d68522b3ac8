package db

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Principal is the authenticated identity of a caller, according to its token.
type Principal struct {
	TokenID   string
	Name      string
	Tenant    berth.TenantID
	Role      spec.Role
	Machine   berth.MachineID // "": not the token of a machine
	ExpiresAt *time.Time      // nil: never

	// Unused is set for a renewed credential of a machine before its first use; see FirstUse.
	Unused bool
}

// Prefixes of the texts of tokens; the rest is <id>_<64 hex digits>.
const (
	tokenPrefix     = "berth"
	joinTokenPrefix = "berthjoin"
)

// mintToken returns the id and the text of a new token, and the hash to store. The text is
// shown only once. A dump of the table grants no access, because the secret has 256 random
// bits.
func mintToken(prefix string) (id, text string, sum []byte) {
	var b [6]byte
	_, _ = rand.Read(b[:])
	id = hex.EncodeToString(b[:])
	text = prefix + "_" + id + "_" + berth.NewSecret()
	h := sha256.Sum256([]byte(text))
	return id, text, h[:]
}

// tokenID returns the public id in a token's text and the hash of the whole text. ok is
// false for a text without the form of a token with this prefix. Only hex digits pass: one query
// looks up the ids of many callers, and a text that the database cannot store would fail them all.
func tokenID(prefix, text string) (id string, sum []byte, ok bool) {
	part := strings.SplitN(text, "_", 4)
	if len(part) != 3 || part[0] != prefix || len(part[1]) != 12 || len(part[2]) != 64 ||
		!isHex(part[1]) || !isHex(part[2]) {
		return "", nil, false
	}
	h := sha256.Sum256([]byte(text))
	return part[1], h[:], true
}

// isHex reports whether a text has hex digits only.
func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }

// TokenShaped reports whether a text has the form of a token. Any other text can be refused
// without a query.
func TokenShaped(text string) bool {
	_, _, ok := tokenID(tokenPrefix, text)
	return ok
}

// JoinTokenShaped is TokenShaped for join tokens.
func JoinTokenShaped(text string) bool {
	_, _, ok := tokenID(joinTokenPrefix, text)
	return ok
}

// errUnknownToken returns the same error for every text that is not the text of a stored token,
// so that it does not reveal which ids exist.
func errUnknownToken() error {
	return berth.Errorf(berth.CodeUnauthorized, "the token is not known to this server")
}

// Authenticate returns the principal of a token, or an error of code unauthorized. The error
// names an expired or revoked token only to a caller with its whole text; any other text is
// unknown. The valid token of a removed machine gets an error of code forbidden, on which the
// agent stops. The work is the same for every token of the right form, and hashes are compared
// in constant time.
func (d *Tokens) Authenticate(ctx context.Context, token string) (Principal, error) {
	list, err := authenticate(ctx, d.pool, []string{token})
	if err != nil {
		return Principal{}, err
	}
	return list[0].Principal, list[0].Err
}

// TokenAnswer is the result for one token: its principal, or the error with which calls
// with this token are refused.
type TokenAnswer struct {
	Principal Principal
	Err       error // of code unauthorized or forbidden; nil for a valid token
}

// AuthenticateUsers authenticates many tokens in one query. It returns one answer per
// token, in order, or an error if the query failed.
func (d *Tokens) AuthenticateUsers(ctx context.Context, tokens []string) ([]TokenAnswer, error) {
	return authenticate(ctx, d.pool, tokens)
}

// AuthenticateMachines is AuthenticateUsers for the tokens of agents.
func (d *Tokens) AuthenticateMachines(ctx context.Context, tokens []string) ([]TokenAnswer, error) {
	return authenticate(ctx, d.pool, tokens)
}

// Live returns the ids of tokens that are neither revoked nor expired and do not belong to
// a removed machine. It compares no secrets: the caller must have authenticated these
// tokens before.
func (d *Tokens) Live(ctx context.Context, ids []string) (map[string]bool, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT t.id
		FROM tokens t
		LEFT JOIN machines m ON m.id = t.machine_id
		LEFT JOIN machine_keys k ON k.key = t.key
		WHERE t.id = ANY(@ids) AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > now())
		  AND k.revoked_at IS NULL AND m.state IS DISTINCT FROM 'retired'`, namedArgs{"ids": ids})
	if err != nil {
		return nil, mapError(err, "tokens")
	}
	live := make(map[string]bool, len(ids))
	var id string
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		live[id] = true
		return nil
	})
	return live, mapError(err, "tokens")
}

// authenticate implements Authenticate for many tokens.
func authenticate(ctx context.Context, pool *pgxpool.Pool, tokens []string) ([]TokenAnswer, error) {
	ids := make([]string, len(tokens))
	for i, t := range tokens {
		ids[i], _, _ = tokenID(tokenPrefix, t)
	}
	rows, err := pool.Query(ctx, `
		SELECT t.id, t.name, t.tenant, `+shownRole+`, coalesce(t.machine_id, ''), t.sha256, t.expires_at,
		       t.revoked_at IS NOT NULL OR k.revoked_at IS NOT NULL, t.expires_at <= now() IS TRUE,
		       coalesce(m.state = 'retired', false), t.key IS NOT NULL, t.key IS NOT NULL AND t.used_at IS NULL
		FROM tokens t
		LEFT JOIN machines m ON m.id = t.machine_id
		LEFT JOIN machine_keys k ON k.key = t.key
		WHERE t.id = ANY(@ids)`,
		namedArgs{"ids": ids})
	if err != nil {
		return nil, mapError(err, "token")
	}
	type storedToken struct {
		principal                        Principal
		sum                              []byte
		revoked, expired, retired, bound bool
	}
	stored, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t storedToken, err error) {
		p := &t.principal
		err = row.Scan(&p.TokenID, &p.Name, &p.Tenant, &p.Role, &p.Machine, &t.sum, &p.ExpiresAt,
			&t.revoked, &t.expired, &t.retired, &t.bound, &p.Unused)
		return t, err
	})
	if err != nil {
		return nil, mapError(err, "token")
	}
	byID := make(map[string]storedToken, len(stored))
	for _, t := range stored {
		byID[t.principal.TokenID] = t
	}
	answers := make([]TokenAnswer, len(tokens))
	for i, text := range tokens {
		id, sum, ok := tokenID(tokenPrefix, text)
		t := byID[id]
		right := subtle.ConstantTimeCompare(t.sum, sum) == 1
		switch {
		case !ok || !right:
			answers[i].Err = errUnknownToken()
		case t.retired:
			answers[i].Err = errRetired(t.principal.Machine)
		case t.revoked:
			answers[i].Err = berth.Errorf(berth.CodeUnauthorized, "token %s is revoked", id)
		case t.expired && t.bound:
			answers[i].Err = errCredentialEnded(t.principal)
		case t.expired:
			answers[i].Err = berth.Errorf(berth.CodeUnauthorized, "token %s expired at %s", id,
				t.principal.ExpiresAt.UTC().Format(time.RFC3339))
		default:
			answers[i].Principal = t.principal
		}
	}
	return answers, nil
}

// Create creates a token and returns it with its secret, which is not stored anywhere. The
// first token of a tenant creates the tenant, unless a tenant with that id was deleted and
// has left jobs, which is a conflict. A tenant that is being deleted is not_found.
func (d *Tokens) Create(ctx context.Context, n spec.NewToken, actor string) (t wire.Token, err error) {
	id, text, sum := mintToken(tokenPrefix)
	role := n.Role
	if role == spec.RoleMetrics {
		role = spec.RoleViewer // see tokens.metrics_only
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		if err := ensureTenant(ctx, tx, n.Tenant); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, `
			INSERT INTO tokens AS t (id, tenant, name, role, metrics_only, sha256, expires_at)
			VALUES (@id, @tenant, @name, @role, @metrics, @sha256,
				now() + nullif(@ttl_ms::bigint, 0) * interval '1 millisecond')
			RETURNING `+tokenDocument,
			namedArgs{"id": id, "tenant": n.Tenant, "name": n.Name, "role": role, "sha256": sum,
				"metrics": n.Role == spec.RoleMetrics,
				"ttl_ms":  n.TTL.Std().Milliseconds()}).Scan(&t); err != nil {
			return err
		}
		return recordTokens(ctx, tx, []string{id}, tokenCreated, actor)
	})
	if err != nil {
		return wire.Token{}, mapError(err, "token")
	}
	t.Secret = text
	return t, nil
}

// shownRole is the role of a token t.
const shownRole = `CASE WHEN t.metrics_only THEN 'metrics' ELSE t.role END`

const tokenDocument = `jsonb_strip_nulls(jsonb_build_object(
			'id', id, 'name', name, 'tenant', tenant, 'role', ` + shownRole + `, 'machine', machine_id,
			'created_at', created_at, 'expires_at', expires_at,
			'revoked_at', coalesce(revoked_at, (SELECT k.revoked_at FROM machine_keys k WHERE k.key = t.key))))`

// List returns a page of the tokens of all tenants, oldest first.
func (d *Tokens) List(ctx context.Context, p Paging) (tokens []wire.Token, next string, err error) {
	return tokenPage(ctx, d.core, "tokens t", tokenDocument, tokensOf{Paging: p}, func(t wire.Token) []any {
		return []any{t.CreatedAt, t.ID}
	})
}

// tokensOf selects a page of a table of tokens: the ones that meet the condition, or all
// without a condition.
type tokensOf struct {
	Paging
	condition string
	args      namedArgs
}

// tokenPage reads a page of a table of tokens, oldest first.
func tokenPage[T any](
	ctx context.Context, d *core, table, document string, p tokensOf, key func(T) []any,
) ([]T, string, error) {
	var at time.Time // the zero time is before every token
	var id string
	if _, err := p.after(&at, &id); err != nil {
		return nil, "", err
	}
	args := namedArgs{"at": at, "id": id, "limit": p.limit() + 1}
	maps.Copy(args, p.args)
	rows, err := d.pool.Query(ctx, `
		SELECT `+document+`
		FROM `+table+`
		WHERE (created_at, id) > (@at, @id) AND `+cmp.Or(p.condition, "true")+`
		ORDER BY created_at, id
		LIMIT @limit`, args)
	if err != nil {
		return nil, "", mapError(err, table)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		return nil, "", mapError(err, table)
	}
	list, next := cut(p.Paging, list, key)
	return list, next, nil
}

// Prune deletes tokens and join tokens that became invalid longer than retention ago, by
// revocation, expiry or use, and the old events of deleted tokens, at most limit of each
// kind. It returns the number of deleted rows. Tokens stored by Ensure stay.
//
// The latest token of a machine stays as well, with its key: it lets the agent of a removed machine
// learn that it must stop. So does the last join token that a machine in service used, from which
// the previous version of berthd reads the machine's pool.
func (d *Tokens) Prune(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	args := namedArgs{"retention": retention, "limit": limit}
	n := 0
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		n = 0
		for _, sql := range []string{`
			DELETE FROM tokens
			WHERE id IN (
				SELECT id
				FROM tokens t
				WHERE least(revoked_at, expires_at) < now() - @retention::interval AND NOT given
				  AND (machine_id IS NULL OR EXISTS (
				      SELECT 1 FROM tokens n
				      WHERE n.machine_id = t.machine_id AND (n.created_at, n.id) > (t.created_at, t.id)))
				ORDER BY least(revoked_at, expires_at)
				LIMIT @limit)`, `
			DELETE FROM join_tokens
			WHERE id IN (
				SELECT id
				FROM join_tokens t
				WHERE least(used_at, expires_at) < now() - @retention::interval
				  AND NOT EXISTS (SELECT 1 FROM machines m WHERE m.id = t.used_by AND m.state <> 'retired'
				      AND NOT EXISTS (SELECT 1 FROM join_tokens n
				        WHERE n.used_by = t.used_by AND n.used_at > t.used_at))
				ORDER BY least(used_at, expires_at)
				LIMIT @limit)`, `
			DELETE FROM machine_keys
			WHERE key IN (
				SELECT key
				FROM machine_keys k
				WHERE bound_at < now() - @retention::interval
				  AND NOT EXISTS (SELECT 1 FROM tokens t WHERE t.key = k.key)
				LIMIT @limit)`, `
			DELETE FROM token_events
			WHERE id IN (
				SELECT id
				FROM token_events e
				WHERE at < now() - @retention::interval AND NOT EXISTS (SELECT 1 FROM tokens t WHERE t.id = e.token)
				ORDER BY id
				LIMIT @limit)`,
		} {
			tag, err := tx.Exec(ctx, sql, args)
			if err != nil {
				return err
			}
			n += int(tag.RowsAffected())
		}
		return nil
	})
	return n, mapError(err, "tokens")
}

// Revoke invalidates a token permanently. Revoking a revoked token is no error, and no event.
func (d *Tokens) Revoke(ctx context.Context, id, actor string) error {
	return d.revoke(ctx, namedArgs{"id": id}, `id = @id`, actor)
}

// revoke implements Revoke and RevokeOwn for the token of args that meets the condition.
func (d *Tokens) revoke(ctx context.Context, args namedArgs, condition, actor string) error {
	id, _ := args["id"].(string)
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var revoked bool // before
		if err := tx.QueryRow(ctx, `
			SELECT revoked_at IS NOT NULL
			FROM tokens
			WHERE `+condition+`
			FOR NO KEY UPDATE`, args).Scan(&revoked); err != nil || revoked {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE tokens SET revoked_at = now() WHERE id = @id`, args); err != nil {
			return err
		}
		return recordTokens(ctx, tx, []string{id}, tokenRevoked, actor)
	})
	return mapError(err, "token "+id)
}

// Ensure stores a token with a text chosen by the caller, such as an operator's first
// token, and reports whether the text is that of a valid token. A known token stays as it
// is: a revoked one stays revoked. The text must have the form of Create's texts.
func (d *Tokens) Ensure(ctx context.Context, text string, n spec.NewToken, actor string) (valid bool, err error) {
	id, sum, ok := tokenID(tokenPrefix, text)
	if !ok {
		return false, berth.Errorf(berth.CodeInvalid, "a token has the form berth_<12 hex digits>_<64 hex digits>")
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		args := namedArgs{"id": id, "tenant": n.Tenant, "name": n.Name, "role": n.Role, "sha256": sum}
		tag, err := tx.Exec(ctx, `
			INSERT INTO tokens (id, tenant, name, role, sha256, given)
			VALUES (@id, @tenant, @name, @role, @sha256, true)
			ON CONFLICT DO NOTHING`, args)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 1 {
			valid = true
			return recordTokens(ctx, tx, []string{id}, tokenCreated, actor)
		}
		// From now on the row outlives the token's revocation: see Prune.
		if _, err := tx.Exec(ctx, `UPDATE tokens SET given = true WHERE id = @id AND NOT given`, args); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT coalesce(bool_or(sha256 = @sha256 AND revoked_at IS NULL
			         AND (expires_at IS NULL OR expires_at > now())), false)
			FROM tokens
			WHERE id = @id`, args).Scan(&valid)
	})
	return valid, mapError(err, "token")
}
