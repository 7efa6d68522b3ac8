package wire

import (
	"fmt"
	"time"

	"berth"
	"berth/spec"
)

// BurstPolicy is the API's document of the rules by which a tenant may get machines of clouds.
type BurstPolicy struct {
	Tenant    berth.TenantID `json:"tenant"`
	Own       *spec.Burst    `json:"own,omitempty" doc:"policy of the tenant itself, as it was set"`
	Above     *spec.Burst    `json:"above,omitempty" doc:"effective policy of the tenants above; own may only narrow"`
	Effective *spec.Burst    `json:"effective,omitempty" doc:"own and above together; absent: no machines of clouds"`
	UpdatedAt *time.Time     `json:"updated_at,omitempty" doc:"last change of own"`
	UpdatedBy string         `json:"updated_by,omitempty"`
}

// Offer is a machine type that a cloud offers, with its dated price.
type Offer struct {
	Provider  string    `json:"provider"`
	Region    string    `json:"region"`
	Zone      string    `json:"zone,omitempty" doc:"unset: the cloud chooses"`
	Type      string    `json:"type" doc:"the cloud's name of the machine type"`
	Market    string    `json:"market" doc:"on_demand or spot"`
	CPUs      int       `json:"cpus"`
	MemoryMiB int64     `json:"memory_mib"`
	GPUs      int       `json:"gpus,omitempty"`
	GPUType   string    `json:"gpu_type,omitempty"`
	Price     float64   `json:"price_per_hour,omitempty" doc:"US dollars; absent: unknown, and forbidden to tenants"`
	Source    string    `json:"source,omitempty" doc:"source of the price"`
	AsOf      time.Time `json:"as_of" doc:"date of the price"`
	// Closed and ClosedUntil describe the breaker that stays open the longest.
	Closed      string     `json:"closed,omitempty" doc:"reason for which launches are refused now; absent: open"`
	ClosedUntil *time.Time `json:"closed_until,omitempty" doc:"unset with closed: until new settings or a success"`
	ClosedPart  string     `json:"closed_part,omitempty" doc:"the closed part of the cloud; unset: this offer"`
}

// Name returns the offer as provider/region/zone/type/market, without an unset zone.
func (o Offer) Name() string {
	place := o.Provider + "/" + o.Region
	if o.Zone != "" {
		place += "/" + o.Zone
	}
	return place + "/" + o.Type + "/" + o.Market
}

// OfferPrice is the body of a call that sets the price of an operator's own contract for an offer.
type OfferPrice struct {
	Provider string  `json:"provider"`
	Region   string  `json:"region"`
	Zone     string  `json:"zone,omitempty"`
	Type     string  `json:"type"`
	Market   string  `json:"market" doc:"on_demand or spot"`
	Price    float64 `json:"price_per_hour,omitempty" doc:"US dollars; absent: the price of the file again"`
}

// Validate returns all faults at once, or nil.
func (p OfferPrice) Validate() (faults []berth.FieldError) {
	for field, text := range map[string]string{"provider": p.Provider, "region": p.Region, "type": p.Type} {
		if text == "" || !plain(text) {
			faults = append(faults, berth.FieldError{Field: field, Detail: "is missing, or not a name of a cloud",
				Allowed: "1 to 128 printable ASCII characters without spaces"})
		}
	}
	if p.Market != "on_demand" && p.Market != "spot" {
		faults = append(faults, berth.FieldError{Field: "market",
			Detail: fmt.Sprintf("%.40q is not a market", p.Market), Allowed: "on_demand, spot"})
	}
	if !(p.Price >= 0 && p.Price <= 1e6) {
		faults = append(faults, berth.FieldError{Field: "price_per_hour", Detail: "is out of range",
			Allowed: "0 to 1000000"})
	}
	return faults
}

// FirstUsageYear and LastUsageYear bound the dates for which the usage of clouds is listed. Every period of such a date
// lies within the years 0 to 9999, which are the limits of JSON.
const (
	FirstUsageYear = 2000
	LastUsageYear  = 2999
)

// CloudUsage is the spend of a tenant and all tenants below it for machines of clouds in one period, in US
// dollars.
type CloudUsage struct {
	Tenant   berth.TenantID `json:"tenant" doc:"empty: machines that admins requested by hand"`
	Parent   berth.TenantID `json:"parent,omitempty"`
	Pool     string         `json:"pool,omitempty" doc:"the pool, in a list by pool; it has no tenants and limits"`
	From     time.Time      `json:"from" doc:"start of the period, in UTC"`
	To       time.Time      `json:"to" doc:"end of the period"`
	Reserved float64        `json:"reserved" doc:"by launches that exist now, and not spent yet; 0 for a past period"`
	Settled  float64        `json:"settled" doc:"costs in the period"`
	Own      float64        `json:"own" doc:"part of settled without the tenants below"`
	Machines int            `json:"machines" doc:"launches that are neither gone nor failed"`
	Limit    float64        `json:"limit,omitempty" doc:"limit of the tenant's own policy, if of the same period"`
	Share    *float64       `json:"share,omitempty" doc:"reserved and settled as a share of the limit"`
	Alerts   []SpendAlert   `json:"alerts,omitempty" doc:"levels of the limit that were reached in the period"`
}

// SpendAlert records that the spend of a period has reached a level of its limit.
type SpendAlert struct {
	Level string    `json:"level" doc:"warn, stop_new or drain"`
	At    time.Time `json:"at"`
	Used  float64   `json:"used" doc:"US dollars, settled and reserved"`
	Limit float64   `json:"limit" doc:"at that time"`
}
