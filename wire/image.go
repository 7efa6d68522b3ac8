package wire

import "berth"

// ImageReport contains the digest that a machine found for the image name of a member, and asks for
// the digest that the member must run. An agent sends an ImageReport before it creates the container
// of a claim with FixImage. A server of the previous version answers 404, and never sets FixImage.
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
