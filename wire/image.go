package wire

import "berth"

// ImageReport asks for the digest that a member must run, and names the digest that the name of
// the image has on the member's machine. An agent sends it before it creates the container of a
// claim with FixImage. A server of the version before answers with 404, and sets no FixImage.
type ImageReport struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"`
	Digest    string             `json:"digest"` // such as sha256: and 64 hexadecimal digits
}

// FixedImage is the digest of the image for all members of a job and all elements of an array:
// the first one that a machine reported.
type FixedImage struct {
	Digest string `json:"digest"`
}
