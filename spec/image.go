package spec

import (
	"fmt"
	"regexp"
	"strings"

	"berth"
)

// Container engines complete a reference without a registry with defaultRegistry, and one without a
// namespace there with defaultNamespace: busybox stands for docker.io/library/busybox.
const (
	defaultRegistry  = "docker.io"
	legacyRegistry   = "index.docker.io" // another name of defaultRegistry
	defaultNamespace = "library/"
)

var (
	registryHost = regexp.MustCompile(`^(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*|\[[0-9a-fA-F:]+\])(:[0-9]+)?$`)
	repository   = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	imageID      = regexp.MustCompile(`^[0-9a-f]{64}$`) // engines read such a name as the id of an image
)

// ImageName returns the full name of the repository that an image reference stands for, without tag
// and digest: docker.io/library/busybox for busybox:1. ok is false if the text is no reference to
// an image.
func ImageName(ref string) (name string, ok bool) {
	if imageID.MatchString(ref) {
		return "", false
	}
	name, _, _ = strings.Cut(ref, "@")
	host, path := splitRegistry(name)
	if at := strings.LastIndexByte(path, ':'); at > strings.LastIndexByte(path, '/') {
		path = path[:at]
	}
	if host == defaultRegistry && !strings.Contains(path, "/") {
		path = defaultNamespace + path
	}
	if !registryHost.MatchString(host) || !repository.MatchString(path) {
		return "", false
	}
	return host + "/" + path, true
}

// splitRegistry separates the registry from the rest of a reference. The first part names a registry
// if it cannot be a part of a repository's name.
func splitRegistry(name string) (host, path string) {
	first, rest, some := strings.Cut(name, "/")
	switch {
	case !some:
		return defaultRegistry, name
	case first == legacyRegistry:
		return defaultRegistry, rest
	case namesRegistry(first):
		return first, rest
	default:
		return defaultRegistry, name
	}
}

// namesRegistry reports whether the first part of a reference is the host of a registry.
func namesRegistry(first string) bool {
	return first == "localhost" || strings.ContainsAny(first, ".:") || strings.ToLower(first) != first
}

// ImageAllowed reports whether one of the entries covers the repository of this full name: an entry
// is a registry, a repository, or the beginning of repositories' names up to a slash.
func ImageAllowed(entries []string, name string) bool {
	for _, e := range entries {
		if below, here := strings.CutPrefix(name, e); here && (below == "" || below[0] == '/') {
			return true
		}
	}
	return false
}

// maxImageEntries bounds a list of allowed images, which every submit reads.
const maxImageEntries = 100

// CheckImageEntries returns a fault for each entry of a list of allowed images that names no
// registry or repository, under the name of the field.
func CheckImageEntries(field string, entries []string) []berth.FieldError {
	v := &validation{}
	v.require(len(entries) <= maxImageEntries, field, fmt.Sprintf("has %d entries", len(entries)),
		fmt.Sprintf("at most %d", maxImageEntries))
	for i, e := range entries[:min(len(entries), maxImageEntries)] {
		host, path, some := strings.Cut(e, "/")
		ok := len(e) <= 255 && host != legacyRegistry && namesRegistry(host) && registryHost.MatchString(host) &&
			(!some || repository.MatchString(path))
		v.require(ok, fmt.Sprintf("%s[%d]", field, i), fmt.Sprintf("%.100q names no registry and no repository", e),
			"REGISTRY or REGISTRY/REPOSITORY without tag, such as ghcr.io/acme or docker.io/library/python")
	}
	return v.faults
}
