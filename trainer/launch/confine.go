package launch

// Confine is what processes are kept to, with all that they start. The zero value gives them no new privileges: a program of theirs that would run as another user, or with capabilities (sudo), runs without. Of Linux only.
type Confine struct {
	// User runs them, which root can say only; nil: this process's.
	User *User
	// Temp is a folder, which is /tmp and /var/tmp for them alone; "": they have the machine's. It wants the right to mount.
	Temp string
	// Keep are files and folders that they see by their paths also where these are below /tmp or /var/tmp.
	Keep []string
	// HideProcesses: of others than User they see none in /proc. It wants the right to mount, and Linux 5.8.
	HideProcesses bool
}

// User is one of the machine, as the kernel knows it.
type User struct {
	UID, GID uint32
	Groups   []uint32
}
