// Package identity verifies documents by which a cloud confirms the identity of an instance, with the standard
// library alone.
//
//	source  document                          signature                       bound to
//	------  --------------------------------  ------------------------------  --------------------------------
//	ec2     instance identity document, JSON  RSA with SHA-256, a key of the  the instance; has no time limit
//	                                          region of 1024 bits or more
//	gce     JSON Web Token                    RS256, a rotating key of        the instance, an audience, and one
//	                                          Google of 2048 bits or more     hour
//
// Everything that a machine sends is hostile until its signature is verified: texts are bounded, the algorithm is
// never taken from the document, and claims are read only after the signature was verified. The caller compares the
// claims with the row of the launch (cloud.Record.Identify).
//
// The one rule to know: a failure to fetch keys proves nothing about an identity, so the machine may try again.
package identity
