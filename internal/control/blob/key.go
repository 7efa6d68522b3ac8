package blob

import (
	"strconv"
	"strings"

	"berth"
)

const maxKey = 900 // S3 ends at 1024 bytes

// errBadKey is the answer to every key that this package did not make.
func errBadKey(key string) error {
	return berth.Errorf(berth.CodeInvalid,
		"object key %.100q: allowed are segments of letters, digits and ._=-, none of them . or ..", key)
}

// checkKey refuses keys that could lead out of the store, or name a hidden file inside.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey {
		return errBadKey(key)
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part == "." || part == ".." {
			return errBadKey(key)
		}
		for _, c := range []byte(part) {
			if !plain(c) {
				return errBadKey(key)
			}
		}
	}
	return nil
}

// plain reports whether a character means the same to every store, and needs no escape in a file
// name or a URL.
func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' ||
		c == '=' || c == '-'
}

// Place is the owner of an object, as encoded in its key.
type Place struct {
	Tenant  berth.TenantID
	Job     berth.JobID
	Attempt int
	Rank    int
	Path    string // below the attempt's prefix, such as outputs/NAME.tar.zst
}

// ParseKey reads the key of an object below an attempt's prefix. Any other key,
// and any other spelling of one, is an error of code invalid.
func ParseKey(key string) (Place, error) {
	if err := checkKey(key); err != nil {
		return Place{}, err
	}
	part := strings.SplitN(key, "/", 7)
	if len(part) != 7 {
		return Place{}, errBadKey(key)
	}
	job, err := berth.ParseJobID(part[3])
	if err != nil {
		return Place{}, errBadKey(key)
	}
	p := Place{Tenant: berth.TenantID(part[1]), Job: job, Path: part[6]}
	p.Attempt, err = strconv.Atoi(strings.TrimPrefix(part[4], "attempt-"))
	if err != nil {
		return Place{}, errBadKey(key)
	}
	if p.Rank, err = strconv.Atoi(strings.TrimPrefix(part[5], "rank-")); err != nil {
		return Place{}, errBadKey(key)
	}
	// There is one spelling: the one that package berth writes.
	if berth.AttemptPrefix(p.Tenant, p.Job, p.Attempt, p.Rank)+"/"+part[6] != key || p.Attempt < 1 || p.Rank < 0 {
		return Place{}, errBadKey(key)
	}
	return p, nil
}
