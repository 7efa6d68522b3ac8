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
// processes. Holes of the engine's administration are listed if a job could cause them through its agent. Holes of
// the Kubernetes interface of containerd are left out, since the Docker Engine does not use it, and so are holes
// whose fixed version is not published: CVE-2026-24260 of the NVIDIA Container Toolkit, and CVE-2026-41567 of the
// Docker Engine, for which the database names no version of the engine.
var holes = []hole{
	// GO-2024-2491: a process keeps a folder of the host as its working folder.
	{wire.ComponentRunc, "CVE-2024-21626", []branch{{"0.0.0", "1.1.12"}}},
	// GO-2024-3110: empty files and folders on the host.
	{wire.ComponentRunc, "CVE-2024-45310", []branch{{"0.0.0", "1.1.14"}, {"1.2.0-rc.1", "1.2.0-rc.3"}}},
	// GO-2025-4096, GO-2025-4097 and GO-2025-4098: escapes by races of mounts.
	{wire.ComponentRunc, "CVE-2025-31133", novemberRunc},
	{wire.ComponentRunc, "CVE-2025-52565", novemberRunc},
	{wire.ComponentRunc, "CVE-2025-52881", novemberRunc},
	// GO-2026-5761: an image changes files of the host.
	{wire.ComponentRunc, "CVE-2026-41579",
		[]branch{{"0.0.0", "1.3.6"}, {"1.4.0", "1.4.3"}, {"1.5.0-rc.1", "1.5.0-rc.3"}}},

	// GO-2024-3239: an image reaches the file system of the host.
	{wire.ComponentToolkit, "CVE-2024-0132", []branch{{"0.0.0", "1.16.2"}}},
	// GO-2025-3992: an image runs code in a hook on the host, as root.
	{wire.ComponentToolkit, "CVE-2025-23266", []branch{{"0.0.0", "1.17.8"}}},
	// GO-2025-3998: an image redirects a hook's write by a link.
	{wire.ComponentToolkit, "CVE-2025-23267", []branch{{"0.0.0", "1.17.8"}}},

	// GO-2025-3528: a user number beyond the range becomes root.
	{wire.ComponentContainerd, "CVE-2024-40635",
		[]branch{{"0.0.0", "1.6.38"}, {"1.7.0-beta.0", "1.7.27"}, {"2.0.0-beta.0", "2.0.4"}}},
	// GO-2025-4100: folders of containerd are open to users of the host.
	{wire.ComponentContainerd, "CVE-2024-25621",
		[]branch{{"0.0.0", "1.7.29"}, {"2.0.0-beta.0", "2.0.7"}, {"2.1.0-beta.0", "2.1.5"}, {"2.2.0-beta.0", "2.2.0"}}},

	// GO-2024-3005: a call without a body passes by the plugins that authorize calls.
	{wire.ComponentEngine, "CVE-2024-41110", []branch{{"19.0.0", "19.3.16"}, {"20.0.0", "20.10.28"},
		{"23.0.0", "23.0.15"}, {"24.0.0", "24.0.10"}, {"25.0.0", "25.0.6"}, {"26.0.0", "26.1.5"},
		{"27.0.0", "27.1.1"}}},
	// GO-2024-2500: users of the host reach files of containers.
	{wire.ComponentEngine, "CVE-2021-41091", []branch{{"0.0.0", "20.10.9"}}},
}

// novemberRunc are the ranges of the three holes of runc of November 2025.
var novemberRunc = []branch{{"0.0.0", "1.2.8"}, {"1.3.0-rc.1", "1.3.3"}, {"1.4.0-rc.1", "1.4.0-rc.3"}}
