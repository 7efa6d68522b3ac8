//go:build !failpoints

package agent

import "berth/activities/node"

// withFailpoints returns r unchanged in this build.
func withFailpoints(r node.Runtime) node.Runtime { return r }
