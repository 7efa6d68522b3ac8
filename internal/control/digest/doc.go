// Package digest resolves the tags of jobs' images to digests, after the submit and in the background
// (docs/adr/0120-tags-are-resolved-at-the-submit.md). Any number of processes may do so: each question to a registry
// belongs to one of them for the time of a lease.
//
// The one rule to know: the registry is untrusted, and named by a user. Connections reach public addresses and the
// networks of the operator only (publicnet), logins go to the registry that the job names and to the token service
// that this registry names, and users see none of the answer. No job waits for this package: without a digest, the
// first machine decides.
package digest
