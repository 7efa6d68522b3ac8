package wire

import "berth"

// DigestBy is who found the digest of a job's image.
type DigestBy string

// The finders of digests.
const (
	DigestBySubmit  DigestBy = "submit"  // the control plane, after the submit
	DigestByMachine DigestBy = "machine" // the first machine that resolved the name
	DigestByRetry   DigestBy = "retry"   // the job that this one retries, which ran it
)

// ImageState is the state of a request to resolve the tag of a job's image. A request that was answered exists no
// longer.
type ImageState string

// The states of requests. In the last three, the first machine decides.
const (
	ImageWaiting      ImageState = "waiting"
	ImageResolving    ImageState = "resolving"
	ImageRefused      ImageState = "refused"      // the image is not among those that the tenant may run
	ImageUnresolvable ImageState = "unresolvable" // the registry gives no digest, also in later tries
	ImageGivenUp      ImageState = "given_up"     // the registry did not answer for too long
)

// ImageRequest is the state of the resolution of a job's image by the control plane.
type ImageRequest struct {
	State  ImageState `json:"state" doc:"waiting, resolving, refused, unresolvable or given_up"`
	Tries  int        `json:"tries" doc:"queries to the registry"`
	Reason string     `json:"reason,omitempty" doc:"why there is no digest"`
}

// ImageReport contains the digest that a machine found for the image name of a member, and asks for
// the digest that the member must run. An agent sends an ImageReport before it creates the container
// of a claim with FixImage. A server of the previous version answers 404, and never sets FixImage.
type ImageReport struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"`
	Digest    string             `json:"digest"` // such as sha256: and 64 hexadecimal digits; "": the image has none
}

// FixedImage is the digest of the image for all members of a job and all elements of an array:
// the first one that the control plane or a machine found; "" if no digest is fixed and the machine's image has none.
type FixedImage struct {
	Digest string `json:"digest"`
}
