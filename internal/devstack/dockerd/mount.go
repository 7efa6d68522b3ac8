package dockerd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// unmountAll detaches every mount below the machine's folders, the innermost
// first. Containers that were killed with their engine leave theirs behind.
func unmountAll(m machine) error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line) // id parent major:minor root mountpoint ...
		if len(fields) < 5 {
			continue
		}
		point := unescape(fields[4])
		if strings.HasPrefix(point, m.dir+"/") || strings.HasPrefix(point, m.run()+"/") {
			points = append(points, point)
		}
	}
	var errs []error
	for i := len(points) - 1; i >= 0; i-- { // later mounts lie on earlier ones
		if err := syscall.Unmount(points[i], syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) &&
			!errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", points[i], err))
		}
	}
	return errors.Join(errs...)
}

// unescape turns the kernel's \040 and its like back into characters.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}
