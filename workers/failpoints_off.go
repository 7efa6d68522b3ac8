//go:build !failpoints

package workers

import "berth/activities/wait"

// noted returns the activity unchanged in this build.
func noted(run RunFunc) RunFunc { return run }

// ends returns t unchanged in this build.
func ends(t wait.Temporal) wait.Temporal { return t }
