package api

import (
	"context"
	"log/slog"
	"net/http"

	"berth/db"
	"berth/internal/control/autoscale"
	"berth/wire"
)

// offerHandlers serve the calls about machine types of clouds. Offers and prices are loaded from the
// operator's file; only an own price is set by a call.
type offerHandlers struct {
	offers *db.Offers
	quoter *autoscale.Quoter
	log    *slog.Logger
}

func (h *offerHandlers) mount(r *router) {
	register(r, r.operation("list-offers", http.MethodGet, "/v1/offers", "machines",
		"List machine types of clouds with dated prices, by provider and region"), h.list)
	set := r.operation("set-offer-price", http.MethodPut, "/v1/offers/price", "machines",
		"Set your contract's price for an offer, in place of the price of the file")
	set.DefaultStatus = http.StatusNoContent
	registerWithBody[wire.OfferPrice](r, set, h.setPrice)
}

// offerListInput selects offers.
type offerListInput struct {
	Provider string `query:"provider" maxLength:"63" doc:"only offers of this provider"`
	GPUType  string `query:"gpu_type" maxLength:"128" doc:"only machines with GPUs of this type"`
	Paging
}

type offerListOutput struct{ Body wire.Page[wire.Offer] }

// list returns a page of offers.
func (h *offerHandlers) list(ctx context.Context, in *offerListInput) (*offerListOutput, error) {
	list, next, err := h.offers.List(ctx, db.OfferFilter{Provider: in.Provider, GPUType: in.GPUType}, in.long())
	if err != nil {
		return nil, err
	}
	return &offerListOutput{page(list, next)}, nil
}

type offerPriceInput struct{ Request }

// setPrice sets or removes the price of an own contract. Quotes of this process use the new price at
// once, others within seconds.
func (h *offerHandlers) setPrice(ctx context.Context, in *offerPriceInput) (*struct{}, error) {
	p, err := readValid[wire.OfferPrice](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if err := h.offers.SetPrice(ctx, p); err != nil {
		return nil, err
	}
	h.quoter.Forget()
	h.log.Info("offer price set", "provider", p.Provider, "region", p.Region, "zone", p.Zone, "type", p.Type,
		"market", p.Market, "dollars", p.Price, "by", operator(ctx))
	return nil, nil
}
