// Package floors judges the software of a machine that separates containers from the host: the container engine, the
// runtime and their settings. A machine that does not meet the security floors takes no jobs of untrusted tenants
// (docs/adr/0119-machines-below-a-floor-take-no-untrusted-work.md).
//
// A floor is the oldest version of a component without a known vulnerability that a job could use. The table of known
// vulnerabilities is part of the program; operators may demand other versions. A machine that cannot be judged does not
// meet the floors.
package floors
