package spec

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"berth"
)

// DataKey identifies content that a job needs, from its spec alone, before any
// fetch. Two jobs of one tenant with equal keys most likely need the same content.
// Jobs of two tenants have no key in common, so that no tenant learns about another
// tenant's data on a machine, even if an engine shares the data. Placement only prefers
// machines by keys; addresses determine the content that a job gets. The zero value
// is no key.
type DataKey int64

// Bounds of a machine's report about its cache and its engine's images: the largest
// entries, each of which takes a second or more to transfer.
const (
	MaxCachedData    = 128
	MinCachedDataMiB = 16
)

// CachedData is content that a machine's cache, or its container engine, holds.
type CachedData struct {
	Key DataKey `json:"key"`
	MiB int64   `json:"mib"` // rounded down
}

// ArchiveKey returns the key of an archive (an upload or another job's output) by its
// address. The database computes the same value as content_key.
func ArchiveKey(tenant berth.TenantID, a berth.Address) DataKey {
	return dataKey(tenant, "archive", a.Hex())
}

// SourceKey returns the key of a fetched input: a hash of its source, since the content is
// unknown before the fetch.
func (i Input) SourceKey(tenant berth.TenantID) DataKey {
	return dataKey(tenant, "source", i.From, i.Endpoint, i.Region, i.SHA256)
}

// ImageKey returns the key of a container image by its name in the spec. A container
// engine, too, decides by the name between a local image and a pull.
func ImageKey(tenant berth.TenantID, image string) DataKey { return dataKey(tenant, "image", image) }

// dataKey hashes the tenant and the parts. The parts must contain no control characters,
// since line feeds separate them.
func dataKey(tenant berth.TenantID, parts ...string) DataKey {
	sum := sha256.Sum256([]byte(string(tenant) + "\n" + strings.Join(parts, "\n")))
	return DataKey(binary.BigEndian.Uint64(sum[:8]))
}

// DataKeys returns the keys of the spec's code, inputs and image, each once. Outputs
// of other jobs are not among them: only the database knows their content. Neither are mounts, of
// which no machine has a copy.
func (s Job) DataKeys(tenant berth.TenantID) []DataKey {
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
		if kind := in.Kind(); !in.Mounted() && (kind.Listed() || kind == InputHTTPS) {
			add(in.SourceKey(tenant))
		}
	}
	if s.Image != "" {
		add(ImageKey(tenant, s.Image))
	}
	return keys
}
