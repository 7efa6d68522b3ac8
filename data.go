package berth

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
)

// DataKey names content that a job needs, as its spec tells it before anything
// is fetched: two jobs of one tenant with equal keys most likely need the same,
// and jobs of two tenants have no key in common: what one has on a machine, even
// where an engine gives it to both, is not the other's to know. Placement prefers machines by it and nothing rests on it: what a job
// is given is told by addresses. The zero value is no key.
type DataKey int64

// What a machine tells of its cache and its engine's images: the largest entries
// of all, each worth a second or so on the way.
const (
	MaxCachedData    = 128
	MinCachedDataMiB = 16
)

// CachedData is content that a machine's cache, or its container engine, holds.
type CachedData struct {
	Key DataKey `json:"key"`
	MiB int64   `json:"mib"` // rounded down
}

// ArchiveKey is the key of an archive, an upload or another job's output, by its
// address. The database works it out too, as content_key.
func ArchiveKey(tenant TenantID, a Address) DataKey { return dataKey(tenant, "archive", a.Hex()) }

// SourceKey is the key of an input from elsewhere: of where it is fetched from,
// since what is there is known only to who has looked.
func (i Input) SourceKey(tenant TenantID) DataKey {
	return dataKey(tenant, "source", i.From, i.Endpoint, i.Region, i.SHA256)
}

// ImageKey is the key of a container image, by its name as the spec writes it: by
// the name an engine tells whether it has the image, or must pull it.
func ImageKey(tenant TenantID, image string) DataKey { return dataKey(tenant, "image", image) }

// dataKey hashes parts that hold no control characters.
func dataKey(tenant TenantID, parts ...string) DataKey {
	sum := sha256.Sum256([]byte(string(tenant) + "\n" + strings.Join(parts, "\n")))
	return DataKey(binary.BigEndian.Uint64(sum[:8]))
}

// DataKeys returns the keys of what the spec names: its code, its inputs and its
// image, each once. Outputs of other jobs are not among them: which content they are, only
// the database knows.
func (s JobSpec) DataKeys(tenant TenantID) []DataKey {
	var keys []DataKey
	add := func(k DataKey) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, u := range s.Uploads() {
		add(ArchiveKey(tenant, u.Address))
	}
	for _, in := range s.Inputs {
		if kind := in.Kind(); kind.Listed() || kind == InputHTTPS {
			add(in.SourceKey(tenant))
		}
	}
	if s.Image != "" {
		add(ImageKey(tenant, s.Image))
	}
	return keys
}
