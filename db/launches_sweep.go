package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth/internal/control/cloud"
)

// ByToken returns the launches with these tokens, and the identity and incarnation of the database.
func (d *Launches) ByToken(ctx context.Context, tokens []string) (rows map[string]cloud.Record, cluster string,
	incarnation int64, err error) {
	rows = map[string]cloud.Record{}
	err = d.readTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT id, incarnation FROM cluster`).Scan(&cluster, &incarnation); err != nil {
			return err
		}
		list, err := tx.Query(ctx, `SELECT `+launchDocument+` FROM launches l, cluster c WHERE l.token = ANY(@tokens)`,
			namedArgs{"tokens": tokens})
		if err != nil {
			return err
		}
		records, err := pgx.CollectRows(list, pgx.RowTo[cloud.Record])
		for _, r := range records {
			rows[r.Token] = r
		}
		return err
	})
	return rows, cluster, incarnation, mapError(err, "launches")
}

// Listed records that all instances of a provider were listed, and those without a row adopted, in an
// incarnation of the database. Launches of the provider are refused in a later one until then.
func (d *Launches) Listed(ctx context.Context, provider string, incarnation int64) error {
	_, err := d.pool.Exec(ctx, `
		INSERT INTO cloud_listings (provider, incarnation)
		VALUES (@provider, @incarnation)
		ON CONFLICT (provider) DO UPDATE
		SET incarnation = excluded.incarnation, listed_at = now()
		WHERE cloud_listings.incarnation < excluded.incarnation`,
		namedArgs{"provider": provider, "incarnation": incarnation})
	return mapError(err, "provider "+provider)
}

// adopter is the actor of adopted launches.
const adopter = "leader"

// Adopt creates the row of an instance that a restored database has lost, from the tags of the
// instance. A launch of the machine that is not settled, or that has the number, is a conflict. The price is
// that of the offers, 0 if they lack it; no tenant pays, since the tags name none.
func (d *Launches) Adopt(ctx context.Context, provider string, i cloud.Instance) (cloud.Record, error) {
	_, err := d.pool.Exec(ctx, `
		INSERT INTO launches (machine, n, pool, provider, region, zone, type, market, incarnation, token, actor,
			price)
		VALUES (@machine, @n, @pool, @provider, @region, @zone, @type, @market, 0, @token, @actor,
			coalesce((
				SELECT coalesce(o.price_override, o.price)
				FROM offers o
				WHERE (o.provider, o.region, o.zone, o.type, o.market)
					= (@provider, @region, @zone, @type, @market)), 0))`,
		namedArgs{"machine": i.Machine, "n": i.N, "pool": i.Pool, "provider": provider, "region": i.Offering.Region,
			"zone": i.Offering.Zone, "type": i.Offering.Type, "market": i.Offering.Market, "token": i.Token,
			"actor": adopter})
	if err != nil {
		return cloud.Record{}, mapError(err, "launch of machine "+string(i.Machine))
	}
	d.hub.Publish(TopicLaunch, string(i.Machine))
	var r cloud.Record
	err = d.pool.QueryRow(ctx, `SELECT `+launchDocument+` FROM launches l, cluster c WHERE l.token = @token`,
		namedArgs{"token": i.Token}).Scan(&r)
	return r, mapError(err, "launch of machine "+string(i.Machine))
}
