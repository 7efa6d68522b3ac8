package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/internal/control/cloud"
	"berth/wire"
)

// OfferRow is an offer of a provider, with the operator's own price if there is one. Prices are in US
// dollars an hour.
type OfferRow struct {
	cloud.Offer
	Provider string
}

// All returns the offers of all providers, by provider and offering. The price of the operator's own
// contract takes precedence.
func (d *Offers) All(ctx context.Context) ([]OfferRow, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT provider, region, zone, type, market, cpus, memory_mib, gpus, gpu_type,
			coalesce(price_override, price), source, as_of
		FROM offers
		ORDER BY provider, region, zone, type, market`)
	if err != nil {
		return nil, mapError(err, "offers")
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o OfferRow, err error) {
		err = row.Scan(&o.Provider, &o.Region, &o.Zone, &o.Type, &o.Market, &o.CPUs, &o.MemoryMiB, &o.GPUs, &o.GPUType,
			&o.Price, &o.Source, &o.AsOf)
		return o, err
	})
	return list, mapError(err, "offers")
}

// Replace replaces the offers of a provider in one transaction, so that a reader sees the old ones or
// the new ones. Prices of the operator's own contract stay with their offers. Two calls at once take
// turns. An offer that the new list lacks is deleted, together with its own price.
func (d *Offers) Replace(ctx context.Context, provider string, all []cloud.Offer, actor string) error {
	type document struct {
		cloud.Offer
		AsOf string `json:"as_of"` // a date, which has no time zone
	}
	documents := make([]document, len(all))
	for i, o := range all {
		documents[i] = document{o, o.AsOf.Format(time.DateOnly)}
	}
	args := namedArgs{"provider": provider, "actor": actor, "offers": documents}
	err := d.tx(ctx, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`SELECT pg_advisory_xact_lock(hashtextextended('berth.offers.' || @provider, 0))`,
			`DELETE FROM offers o
			WHERE o.provider = @provider AND NOT EXISTS (
				SELECT 1
				FROM jsonb_to_recordset(@offers) n (region text, zone text, type text, market text)
				WHERE (n.region, coalesce(n.zone, ''), n.type, n.market) = (o.region, o.zone, o.type, o.market))`,
			`INSERT INTO offers (provider, region, zone, type, market, cpus, memory_mib, gpus, gpu_type, price, source,
				as_of, loaded_by)
			SELECT @provider, n.region, coalesce(n.zone, ''), n.type, n.market, n.cpus, n.memory_mib,
				coalesce(n.gpus, 0), coalesce(n.gpu_type, ''), n.price_per_hour, coalesce(n.source, ''), n.as_of, @actor
			FROM jsonb_to_recordset(@offers) n (region text, zone text, type text, market text, cpus integer,
				memory_mib bigint, gpus integer, gpu_type text, price_per_hour double precision,
				source text, as_of date)
			ON CONFLICT (provider, region, zone, type, market) DO UPDATE
			SET cpus = excluded.cpus, memory_mib = excluded.memory_mib, gpus = excluded.gpus,
				gpu_type = excluded.gpu_type, price = excluded.price, source = excluded.source, as_of = excluded.as_of,
				loaded_at = now(), loaded_by = excluded.loaded_by`,
		} {
			if _, err := tx.Exec(ctx, sql, args); err != nil {
				return err
			}
		}
		return nil
	})
	return mapError(err, "offers of provider "+provider)
}

// SetPrice sets the price of the operator's own contract for an offer, which outlives the loads of new
// prices. 0 removes it. An offer that is not loaded is not_found. It applies to launches that are
// requested from now on: a launch keeps the price of its request.
func (d *Offers) SetPrice(ctx context.Context, p wire.OfferPrice) error {
	tag, err := d.pool.Exec(ctx, `
		UPDATE offers
		SET price_override = nullif(@price::float8, 0)
		WHERE (provider, region, zone, type, market) = (@provider, @region, @zone, @type, @market)`,
		namedArgs{"price": p.Price, "provider": p.Provider, "region": p.Region, "zone": p.Zone, "type": p.Type,
			"market": p.Market})
	if err == nil && tag.RowsAffected() == 0 {
		err = pgx.ErrNoRows
	}
	return mapError(err, "offer")
}

// OfferFilter selects offers. An empty field selects all.
type OfferFilter struct{ Provider, GPUType string }

// closedOffer is an offer with the breaker that closes it.
type closedOffer struct {
	wire.Offer
	Scope cloud.Scope `json:"closed_scope"`
	Key   string      `json:"closed_key"`
}

// List returns a page of offers with the refusals of their clouds, by provider and offering, and the
// cursor of the next page. Of several open breakers of an offer, it shows the one that is open the
// longest, and before all others one without an end.
func (d *Offers) List(ctx context.Context, f OfferFilter, p Paging) (list []wire.Offer, next string, err error) {
	var after [5]string
	if _, err := p.after(&after[0], &after[1], &after[2], &after[3], &after[4]); err != nil {
		return nil, "", err
	}
	rows, err := d.pool.Query(ctx, `
		SELECT jsonb_strip_nulls(jsonb_build_object(
			'provider', o.provider, 'region', o.region, 'zone', nullif(o.zone, ''), 'type', o.type, 'market', o.market,
			'cpus', o.cpus, 'memory_mib', o.memory_mib, 'gpus', nullif(o.gpus, 0), 'gpu_type', nullif(o.gpu_type, ''),
			'price_per_hour', nullif(coalesce(o.price_override, o.price), 0),
			'source', CASE WHEN o.price_override > 0 THEN 'operator' ELSE nullif(o.source, '') END,
			'as_of', o.as_of::timestamp AT TIME ZONE 'UTC', 'closed', b.reason, 'closed_until', b.until,
			'closed_scope', b.scope, 'closed_key', b.key))
		FROM offers o
		LEFT JOIN LATERAL (
			SELECT b.reason, b.until, b.scope, b.key
			FROM breakers b
			WHERE ((b.scope, b.key) IN (
				('offering', concat_ws('/', o.provider, o.region, o.zone, o.type, o.market)),
				('join', concat_ws('/', o.provider, o.region, o.zone, o.type, o.market)),
				('provider', o.provider || '/' || o.region), ('provider', o.provider),
				('throttle', o.provider || '/' || o.region))
			    OR b.scope = 'quota' AND concat_ws('/', o.provider, o.region, o.type, o.market) = ANY (b.covers))
			  AND (b.until IS NULL OR b.until > clock_timestamp()) AND `+obeyed+`
			ORDER BY b.until DESC NULLS FIRST
			LIMIT 1
		) b ON true
		WHERE (o.provider, o.region, o.zone, o.type, o.market) > (@a0, @a1, @a2, @a3, @a4)
		  AND @provider IN ('', o.provider) AND @gpu_type IN ('', o.gpu_type)
		ORDER BY o.provider, o.region, o.zone, o.type, o.market
		LIMIT @limit`,
		namedArgs{"a0": after[0], "a1": after[1], "a2": after[2], "a3": after[3], "a4": after[4],
			"provider": f.Provider, "gpu_type": f.GPUType, "limit": p.limit() + 1})
	if err != nil {
		return nil, "", mapError(err, "offers")
	}
	read, err := pgx.CollectRows(rows, pgx.RowTo[closedOffer])
	if err != nil {
		return nil, "", mapError(err, "offers")
	}
	for _, o := range read {
		o.ClosedPart = cloud.Breaker{Scope: o.Scope, Key: o.Key}.Wider()
		list = append(list, o.Offer)
	}
	list, next = cut(p, list, func(o wire.Offer) []any {
		return []any{o.Provider, o.Region, o.Zone, o.Type, o.Market}
	})
	return list, next, nil
}
