package main

import (
	"fmt"
	"time"

	"berth/wire"
)

// digestText formats the digest of a job's image, with who found it and when; "" without a digest.
func digestText(j wire.Job, now time.Time) string {
	if j.ImageDigest == "" {
		return ""
	}
	by := ""
	switch j.ImageDigestBy {
	case wire.DigestBySubmit:
		by = "of the tag at the submit"
	case wire.DigestByMachine:
		by = "found by the first machine"
	case wire.DigestByRetry:
		return j.ImageDigest + ", as the job that this one retries"
	}
	if by == "" || j.ImageDigestAt == nil {
		return j.ImageDigest
	}
	return j.ImageDigest + ", " + by + ", " + stamp(j.ImageDigestAt, now)
}

// imageRequestText formats why the control plane has found no digest of a job's image; "" if it has, or was not asked.
func imageRequestText(j wire.Job) string {
	r := j.ImageRequest
	if r == nil {
		return ""
	}
	switch r.State {
	case wire.ImageWaiting, wire.ImageResolving:
		text := "the control plane resolves the tag, unless a machine is first"
		if r.Reason != "" {
			text += fmt.Sprintf("; %s so far: %s", plural(r.Tries, "try", "tries"), oneLine(r.Reason))
		}
		return text
	default:
		return "not resolved at the submit, the first machine decides: " + oneLine(r.Reason)
	}
}
