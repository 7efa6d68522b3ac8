package agent

import (
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

// writeTime returns how long the job took to write a step: from the creation of the step's folder until the last
// change of its file DONE. A folder that the job has renamed keeps its time of creation. The result is nil if the file
// system records no creation, and for times that cannot be right, which a job can set itself.
func writeTime(root *os.Root, step int64) *time.Duration {
	// O_NONBLOCK: the job owns the folder and may have put a FIFO there, whose open would block.
	dir, err := root.OpenFile(stepName(step), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer dir.Close()
	var st unix.Statx_t
	err = unix.Statx(int(dir.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return nil
	}
	done, err := root.Lstat(path.Join(stepName(step), doneFile))
	if err != nil {
		return nil
	}
	took := done.ModTime().Sub(time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)))
	// The job can set the time of its file DONE to any value.
	if took < 0 || done.ModTime().After(time.Now()) {
		return nil
	}
	return &took
}
