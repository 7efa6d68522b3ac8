package cloud

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
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
	// Program names the program of the provider with its arguments and environment, and Files are the files that it
	// reads, as far as they are known: its configuration and credentials. Both are only for Accounts.Mark.
	Program string
	Files   []string
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
	l.Settings = account.settings(r.Pool)
	return l, nil
}

// settings returns the settings for machines of a pool.
func (a Account) settings(pool string) json.RawMessage {
	if own, ok := a.Pools[pool]; ok {
		return own
	}
	return a.Settings
}

// Serves reports whether a provider launches machines of a pool: it has settings for the pool, settings for
// all pools, or needs none at all.
func (a Account) Serves(pool string) bool {
	_, own := a.Pools[pool]
	return own || a.Settings != nil || len(a.Pools) == 0
}

// Mark returns a hash of the settings by which the cloud has refused a launch, for a breaker that other settings
// reopen: of its program and its files, and for ScopePool of the settings that were sent, otherwise of all settings of
// the provider.
// Equal configurations have equal hashes on all replicas. It is "" for another breaker, and for a provider that is not
// configured here.
func (a Accounts) Mark(b Breaker, sent json.RawMessage) string {
	provider, _, found := strings.Cut(b.Key, "/")
	account, ok := a.Providers[provider]
	if !ok || b.Scope != ScopePool && (b.Scope != ScopeProvider || found) {
		return ""
	}
	h := sha256.New()
	part := func(name string, value []byte) {
		fmt.Fprintf(h, "%q %d ", name, len(value))
		_, _ = h.Write(value)
	}
	part("program", []byte(account.Program))
	for _, path := range account.Files {
		part(path, content(path))
	}
	if b.Scope == ScopePool {
		part("settings", compact(sent))
	} else {
		part("settings", compact(account.Settings))
		for _, pool := range slices.Sorted(maps.Keys(account.Pools)) {
			part("pool "+pool, compact(account.Pools[pool]))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// SettingsHashes are the hashes of the settings with which a request is sent, see Accounts.Mark, by the breakers that a
// refusal of these settings trips.
type SettingsHashes []Breaker

// SettingsHashes returns the hashes for a request with these settings, with the content that the files have now.
func (a Accounts) SettingsHashes(r Request, sent json.RawMessage) SettingsHashes {
	marked := SettingsHashes{r.ProviderBreaker(), r.PoolBreaker(), r.NetworkBreaker()}
	for i, b := range marked {
		marked[i].Settings = a.Mark(b, sent)
	}
	return marked
}

// Of returns the hash for a breaker, or "" for a breaker that only its end reopens.
func (m SettingsHashes) Of(b Breaker) string {
	for _, marked := range m {
		if marked.Scope == b.Scope && marked.Key == b.Key {
			return marked.Settings
		}
	}
	return ""
}

// Marked returns Mark for the present settings of a breaker's pool or provider.
func (a Accounts) Marked(b Breaker) string {
	provider, rest, _ := strings.Cut(b.Key, "/")
	pool, _, _ := strings.Cut(rest, "/")
	return a.Mark(b, a.Providers[provider].settings(pool))
}

// mostContent is the number of bytes of a file that count for Accounts.Mark.
const mostContent = 1 << 20

// content returns the begin of a regular file, or nil if it cannot be read.
func content(path string) []byte {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	body, err := io.ReadAll(io.LimitReader(f, mostContent))
	if err != nil {
		return nil
	}
	return body
}

// compact returns JSON without spaces, or as it is if it is none.
func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return raw
	}
	return b.Bytes()
}

// Sealed is a request as its row stores it: sealed under the key with that id, with the hash of its
// plain text. Identity is the source of the identity that the request's join demands, or "".
type Sealed struct {
	Hash, KeyID string
	Request     []byte
	Identity    wire.IdentitySource
}
