package cloud

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"berth"
	"berth/wire"
)

// Account is a provider as an operator has configured it.
type Account struct {
	Provider
	Regions  []string        // in which instances of the cluster are listed
	Settings json.RawMessage // of all pools, or nil
	Pools    map[string]json.RawMessage
	// Identities verifies the identities of instances that join; nil: none is demanded.
	Identities Identities
}

// Accounts are the configured providers, with the data by which new machines reach the API. The
// zero value has no provider.
type Accounts struct {
	URL       string            // of the API, as agents reach it
	CA        string            // PEM, or empty
	Agents    map[string]string // hashes of the agents that berthd serves, by platform; nil: it serves none
	Offers    string            // path of the file of machine types and prices, or empty
	Providers map[string]Account
}

// Account returns a provider by its name. An unknown name is an error of code invalid.
func (a Accounts) Account(name string) (Account, error) {
	found, ok := a.Providers[name]
	if ok {
		return found, nil
	}
	allowed := "none: this berthd runs without --cloud"
	if len(a.Providers) > 0 {
		allowed = "configured are " + strings.Join(slices.Sorted(maps.Keys(a.Providers)), ", ")
	}
	return Account{}, &berth.Error{Code: berth.CodeInvalid, Message: "no provider " + name + ": " + allowed,
		Fields: []berth.FieldError{{Field: "provider", Detail: "names " + name, Allowed: allowed}}}
}

// Request returns the full request of a launch, as it is stored and sent. The pool's own settings take
// the place of the account's.
func (a Accounts) Request(r Record, joinSecret string) (Launch, error) {
	account, err := a.Account(r.Provider)
	if err != nil {
		return Launch{}, err
	}
	l := r.Launch()
	l.Bootstrap = Bootstrap{URL: a.URL, JoinToken: joinSecret, CA: a.CA, Agents: a.Agents}
	if v := account.Identities; v != nil {
		l.Bootstrap.Identity = &Identity{Source: v.Source()}
		if v.Source() == wire.IdentityGCE {
			l.Bootstrap.Identity.Audience = Audience(r.Cluster, r.Machine, r.N, joinSecret)
		}
	}
	l.Settings = account.Settings
	if own, ok := account.Pools[r.Pool]; ok {
		l.Settings = own
	}
	return l, nil
}

// Sealed is a request as its row stores it: sealed under the key with that id, with the hash of its
// plain text. Identity is the source of the identity that the request's join demands, or "".
type Sealed struct {
	Hash, KeyID string
	Request     []byte
	Identity    wire.IdentitySource
}
