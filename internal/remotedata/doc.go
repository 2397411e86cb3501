// Package remotedata fetches what jobs read from buckets and web servers, and keeps copies on the host.
//
//   - Sources: what an administrator lets jobs read, and who may.
//   - Remote: finds what an entry of a job file stands for (Resolve), and opens that again later, or fails because it is another (Open).
//   - Cache: copies below a directory, of a bounded size. Want begins to fetch what is not there, and says how far that is.
//
// All of it runs in the daemon, which looks into no content. A worker finds a copy by pinned.Object.Path.
package remotedata
