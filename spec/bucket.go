package spec

import (
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"

	"berth"
)

// lowerName is the alphabet of names in buckets, accounts and regions.
const lowerName = "abcdefghijklmnopqrstuvwxyz0123456789-"

// ParseS3 parses s3://BUCKET/KEY. The key is literal: there are no escapes. A key that is
// empty or ends in / is a prefix and names all objects below it. The error has
// berth.CodeInvalid and describes the fault for the user.
func ParseS3(from string) (bucket, key string, err error) {
	bucket, key, slash := cutBucket(from, "s3://")
	if len(bucket) < 3 || len(bucket) > 63 || strings.Trim(bucket, lowerName+".") != "" ||
		strings.Contains(bucket, "..") {
		return "", "", berth.Errorf(berth.CodeInvalid, "a bucket's name has 3 to 63 of a-z, 0-9, '-' and '.'")
	}
	return bucket, key, keyFault(len(key), slash)
}

// ParseGS parses gs://BUCKET/KEY. Keys and errors are as for ParseS3.
func ParseGS(from string) (bucket, key string, err error) {
	bucket, key, slash := cutBucket(from, "gs://")
	if len(bucket) < 3 || len(bucket) > 222 || strings.Trim(bucket, lowerName+"_.") != "" ||
		strings.Contains(bucket, "..") {
		return "", "", berth.Errorf(berth.CodeInvalid, "a bucket's name has 3 to 222 of a-z, 0-9, '-', '_' and '.'")
	}
	return bucket, key, keyFault(len(key), slash)
}

// AzureBlobs names a blob of Azure Blob Storage, or all blobs below a prefix.
type AzureBlobs struct {
	Account, Container string
	Key                string // a prefix if empty or with a / at its end
}

// ParseAzure parses azblob://ACCOUNT/CONTAINER/KEY. Keys and errors are as for ParseS3,
// but the bound on the length of a key counts characters instead of bytes.
func ParseAzure(from string) (AzureBlobs, error) {
	account, rest, _ := cutBucket(from, "azblob://")
	container, key, slash := strings.Cut(rest, "/")
	named := len(container) >= 3 && len(container) <= 63 && strings.Trim(container, lowerName) == "" ||
		container == "$root" || container == "$web" || container == "$logs"
	switch {
	case len(account) < 3 || len(account) > 24 || strings.Trim(account, lowerName) != "" ||
		strings.Contains(account, "-"):
		return AzureBlobs{}, berth.Errorf(berth.CodeInvalid, "an account's name has 3 to 24 of a-z and 0-9")
	case !named:
		return AzureBlobs{}, berth.Errorf(berth.CodeInvalid,
			"a container's name has 3 to 63 of a-z, 0-9 and '-', and follows the account")
	}
	return AzureBlobs{Account: account, Container: container, Key: key}, keyFault(utf8.RuneCountInString(key), slash)
}

// cutBucket splits an address into bucket and key; both are empty for another scheme.
// slash reports whether a / separates them.
func cutBucket(from, scheme string) (bucket, key string, slash bool) {
	rest, ok := strings.CutPrefix(from, scheme)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/")
}

// keyFault returns the fault of a key: too long, or without the / after the bucket.
func keyFault(length int, slash bool) error {
	switch {
	case !slash:
		return berth.Errorf(berth.CodeInvalid, "a whole bucket must end with a /")
	case length > 1024:
		return berth.Errorf(berth.CodeInvalid, "a key has at most 1024 bytes, and only characters that Azure allows")
	}
	return nil
}

// isServer reports whether an endpoint is the address of a server, without a login, a query,
// a fragment or a path. As an exception, the path may be the account of azblob://, since
// some servers select the account by the path.
func (i Input) isServer(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	within := strings.Trim(u.Path, "/")
	if of, err := ParseAzure(i.From); err == nil && within == of.Account {
		return true
	}
	return within == ""
}

// MayCarryLogin reports whether a login may be sent to the server of a URL: by
// https, or by plain http to a literal private address. Machines connect to private
// addresses only if their operator has named the network, and so trusts it with
// logins. The address behind a host name is unknown before the connection.
func MayCarryLogin(server string) bool {
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "https" {
		return err == nil
	}
	addr, err := netip.ParseAddr(u.Hostname())
	addr = addr.Unmap()
	return err == nil && u.Scheme == "http" && (addr.IsPrivate() || addr.IsLoopback())
}
