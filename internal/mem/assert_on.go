//go:build assert

package mem

// mangle overwrites memory when it is handed out and when it comes back.
const mangle = true
