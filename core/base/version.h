/* version.h - which moefold this is. */
#ifndef MF_BASE_VERSION_H
#define MF_BASE_VERSION_H

#define MF_VERSION "0.1"
/* What plans and reports say of who made them. */
#define MF_GENERATOR "moefold " MF_VERSION

#endif
