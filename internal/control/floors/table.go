package floors

import "berth/wire"

// hole is a published hole of a component, with the versions that have it.
type hole struct {
	component string
	advisory  string
	// branches are the affected ranges, each from a version on and before the version that fixes it, oldest first.
	branches []branch
}

// branch is a range of versions with a hole. The first version of a range belongs to it, and fixed does not.
type branch struct{ from, fixed string }

// Checked is the date on which the table was compared with its sources: the Go vulnerability database (the GO numbers
// below) as of 2026-08-21, and the bulletins of NVIDIA.
const Checked = "2026-11-30"

// holes lists the holes that a job could use against its machine or against other jobs: by its image, or by its
// processes. Holes of the engine's administration are listed if a job could cause them through its agent. A range that
// begins a branch begins before its pre-releases, at X.Y.0-0, since the database often names the release only.
//
// Left out are:
//   - holes of the Kubernetes interface of containerd, which the Docker Engine does not use
//   - CVE-2026-24260 of the NVIDIA Container Toolkit: its source names no fixed version
//   - CVE-2026-41567, CVE-2026-41568 and CVE-2026-42306 of the Docker Engine (GO-2026-5746, GO-2026-5668, -5617),
//     which need a copy into or out of a container: the database names no released version of the engine that fixes
//     them, so a floor would end all untrusted work. An operator demands one with --security-floors engine=VERSION
//   - CVE-2026-34040 of the Docker Engine (GO-2026-4887), a sequel of CVE-2024-41110: the database names no released
//     version of the engine that fixes it
//   - CVE-2025-54410 of the Docker Engine: it needs a reload of the host's firewall, which no job can cause
var holes = []hole{
	// GO-2024-2491: a process keeps a folder of the host as its working folder.
	{wire.ComponentRunc, "CVE-2024-21626", []branch{{"0.0.0-0", "1.1.12"}}},
	// GO-2024-3110: empty files and folders on the host.
	{wire.ComponentRunc, "CVE-2024-45310", []branch{{"0.0.0-0", "1.1.14"}, {"1.2.0-0", "1.2.0-rc.3"}}},
	// GO-2025-4096, GO-2025-4097 and GO-2025-4098: escapes by races of mounts.
	{wire.ComponentRunc, "CVE-2025-31133", novemberRunc},
	{wire.ComponentRunc, "CVE-2025-52565", novemberRunc},
	{wire.ComponentRunc, "CVE-2025-52881", novemberRunc},
	// GO-2026-5761: an image with a link in place of /dev changes files of the host.
	{wire.ComponentRunc, "CVE-2026-41579",
		[]branch{{"0.0.0-0", "1.3.6"}, {"1.4.0-0", "1.4.3"}, {"1.5.0-0", "1.5.0-rc.3"}}},

	// GO-2024-3239: an image reaches the file system of the host.
	{wire.ComponentToolkit, "CVE-2024-0132", []branch{{"0.0.0-0", "1.16.2"}}},
	// GO-2025-3992: an image runs code in a hook on the host, as root.
	{wire.ComponentToolkit, "CVE-2025-23266", []branch{{"0.0.0-0", "1.17.8"}}},
	// GO-2025-3998: an image redirects a hook's write by a link.
	{wire.ComponentToolkit, "CVE-2025-23267", []branch{{"0.0.0-0", "1.17.8"}}},

	// GO-2025-3528: a user number beyond the range becomes root.
	{wire.ComponentContainerd, "CVE-2024-40635",
		[]branch{{"0.0.0-0", "1.6.38"}, {"1.7.0-0", "1.7.27"}, {"2.0.0-0", "2.0.4"}}},
	// GO-2025-4100: folders of containerd are open to users of the host.
	{wire.ComponentContainerd, "CVE-2024-25621",
		[]branch{{"0.0.0-0", "1.7.29"}, {"2.0.0-0", "2.0.7"}, {"2.1.0-0", "2.1.5"}, {"2.2.0-0", "2.2.0"}}},
	// GO-2026-5378: the fix of CVE-2024-40635 was incomplete, and a number beyond the range is root again.
	{wire.ComponentContainerd, "CVE-2026-46680",
		[]branch{{"1.7.27", "1.7.32"}, {"2.0.4", "2.0.9"}, {"2.1.0-0", "2.2.4"}, {"2.3.0-0", "2.3.1"}}},
	// GO-2026-5475: an image with a file of groups without a bound stops containerd.
	{wire.ComponentContainerd, "CVE-2026-47262", []branch{{"1.7.0-0", "1.7.33"}, {"2.0.0-0", "2.0.10"},
		{"2.1.0-0", "2.1.9"}, {"2.2.0-0", "2.2.5"}, {"2.3.0-0", "2.3.2"}}},

	// GO-2024-3005: a call without a body passes by the plugins that authorize calls.
	{wire.ComponentEngine, "CVE-2024-41110", []branch{{"19.0.0-0", "19.3.16"}, {"20.0.0-0", "20.10.28"},
		{"22.0.0-0", "23.0.15"}, {"24.0.0-0", "24.0.10"}, {"25.0.0-0", "25.0.6"}, {"26.0.0-0", "26.1.5"},
		{"27.0.0-0", "27.1.1"}}},
	// GO-2024-2500: users of the host reach files of containers.
	{wire.ComponentEngine, "CVE-2021-41091", []branch{{"0.0.0-0", "20.10.9"}}},
}

// novemberRunc are the ranges of the three holes of runc of November 2025.
var novemberRunc = []branch{{"0.0.0-0", "1.2.8"}, {"1.3.0-0", "1.3.3"}, {"1.4.0-0", "1.4.0-rc.3"}}
